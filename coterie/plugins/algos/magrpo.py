"""MAGRPO: multi-agent GRPO over trees of joint actions (arXiv 2508.04652); with other baselines (CoMLRL)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from pydantic import Field

from coterie.core.errors import ConfigError
from coterie.core.protocols import Batch, Plan, Team
from coterie.core.types import Credit
from coterie.plugins.algos.blocks.estimator import GroupEstimator, RowConfig
from coterie.plugins.algos.blocks.groups import turn_weights


class MAGRPO(GroupEstimator):
    """The candidates of one (node, role) share a baseline; a joint action's return includes what follows.

    Agents act at once and share the reward. Joint action g at a node returns R_g = r_g + gamma * mean of its
    children's returns (a leaf: r_g); A_g = R_g - mean over the node's candidates, not divided by a deviation.
    `pairing: aligned` plays K joint actions per node, `cross` all K^n; with `cross` a branch's return is the
    mean over its joint actions (the original takes their sum: equal up to a constant where all were played).
    A branch's loss weight is turn_weights[t] / (branches of that turn); otherwise the last turn of a tree
    would get nearly all of the gradient.

    Cost: K^(stages*T) leaves aligned, K^(n*T) cross. When it degenerates: with one turn and one agent it is
    Dr. GRPO; with K = 1 there is no baseline (refused); with `aligned` a role's return depends on the actions
    that its partners happened to sample.
    """

    class Config(RowConfig):
        turn_weights: tuple[float, ...] = Field(
            (),
            description="Loss weight of each turn, shared by its branches; default: 1 each.",
        )
        termination_threshold: float | None = Field(
            None, description="A joint action that earns at least this ends its episode; default: never."
        )

    group = "decision"
    returns = "tree"
    paper_loss = "reinforce, sequence_sum"

    @property
    def stop_above(self) -> float | None:
        """The reward from which the sampler expands a joint action no further; None: no such bound."""
        threshold: float | None = self.config.termination_threshold
        return threshold

    def check(self, plan: Plan, team: Team) -> None:
        super().check(plan, team)
        weights = self.config.turn_weights
        if weights and len(weights) != team.max_turns:
            raise ConfigError(
                f"algorithm.turn_weights has {len(weights)} weights, and an episode {team.max_turns} turns",
                path="algorithm.turn_weights",
                fix="give one weight per turn (team.max_turns), or leave the key out",
            )
        if weights and (min(weights) < 0 or not 0 < sum(weights) < math.inf):
            raise ConfigError(
                "turn weights must be 0 or more, finite, and not all 0",
                path="algorithm.turn_weights",
                why=f"they are {list(weights)}",
                fix="set each turn's weight to its share of the gradient, e.g. 1 each",
            )

    def __call__(self, batch: Batch, state: Any) -> tuple[Credit, Any]:
        """The group estimator's credit, with the turn weights."""
        credit, state = super().__call__(batch, state)
        weight = turn_weights(batch.trees, credit.advantage, self.config.turn_weights)
        return dataclasses.replace(credit, weight=weight), state


class MAREINFORCE(MAGRPO):
    """A_g = R_g, the return itself: unbiased and noisy, since every candidate with a positive return is
    reinforced.

    With a normaliser that re-centres it is MAGRPO (and logs a warning). K = 1 is allowed, since nothing is
    compared.
    """

    baseline = "none"


class MAReMax(MAGRPO):
    """A_g = R_g - max over the node's candidates.

    Biased, since the baseline contains the action's own return: no advantage is positive, the best
    candidate's is 0, and the policy learns only from the negative advantages of the others. It is not ReMax
    (arXiv 2310.10505), whose baseline is the return of a *greedy* rollout and doesn't depend on the sampled
    actions. With a normaliser that re-centres it is MAGRPO (and logs a warning).
    """

    baseline = "max"


class MARLOO(MAGRPO):
    """A_g = R_g - mean of the other candidates' returns: K/(K-1) times MAGRPO's, which makes it unbiased
    (RLOO is arXiv 2402.14740).

    With a normaliser that re-centres it is MAGRPO (and logs a warning).
    """

    baseline = "loo"
