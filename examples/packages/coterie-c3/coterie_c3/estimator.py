"""C3: contextual counterfactual credit assignment (arXiv 2603.06859), without its optional critic."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field

from coterie import GroupEstimator, Normaliser, Pieces, SumConfig


class C3(GroupEstimator):
    """A message is worth what its alternatives in the same context are not.

    At each decision the whole transcript is kept fixed, n alternatives are sampled from the behaviour
    policy, and each is continued by the same policies. With V_i the mean terminal reward below alternative i
    (at each later context the mean over its alternatives, so every context counts once),

        A_i = V_i - mean of the V_j of the other alternatives.

    Coterie's tree is that nested replay: `sampler: {branches: n, expand: all}` samples n alternatives of one
    prompt and plays all of them on. Within a context whatever came before is equal, so it cancels out, and a
    sibling's mean is independent of alternative i, so the baseline leaves the gradient unbiased.

    Cost: n^stages leaves a task. When it degenerates: with n = 1 there is no alternative (refused); a missing
    terminal reward is left out of the means above it. An alternative with none below it is left out, and a
    context with one that remains is not trained.
    """

    class Config(SumConfig):
        normalise: Normaliser = Field(default_factory=lambda: Normaliser(type="none"))
        baseline: Literal["loo", "mean"] = Field(
            "loo",
            description="The mean of the other alternatives, or (`mean`) of all: (n - 1)/n of the advantage.",
        )
        replay: bool = Field(
            True,
            description="False is the ablation without replay: a role's actions of one turn are compared "
            "over all contexts of a task, whatever was said before them.",
        )

    returns = "tree"

    @property
    def pieces(self) -> Pieces:
        """The pieces, with the grouping and the baseline that the configuration names."""
        group: Literal["decision", "turn"] = "decision" if self.config.replay else "turn"
        return replace(super().pieces, group=group, baseline=self.config.baseline)
