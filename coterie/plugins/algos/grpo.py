"""GRPO: group-relative policy optimisation (DeepSeekMath, arXiv 2402.03300)."""

from __future__ import annotations

from pydantic import Field

from coterie.core.credit import GroupConfig, GroupEstimator, Normaliser
from coterie.core.errors import ConfigError
from coterie.core.protocols import Plan, Team


class GRPO(GroupEstimator):
    """The G chains of one task share a baseline, one value per (chain, role): the episode's return.

    A = (R - mean) / (std + eps) over the group, the same for every action of the chain. With many agents
    each role is compared with itself in the other chains. When it degenerates: with G = 1 there is no
    baseline (refused); when all chains are equally good the group teaches nothing; and credit inside a chain
    is not divided, so an idle role is moved by what the others did.
    """

    class Config(GroupConfig):
        normalise: Normaliser = Field(default_factory=lambda: Normaliser(eps=1e-4))

    grouping = "task"

    def check(self, plan: Plan, team: Team) -> None:
        super().check(plan, team)
        if plan.branches > 1:
            raise ConfigError(
                f"grpo compares whole chains, and branches is {plan.branches}",
                path="sampler.branches",
                why="branches that are not played out have no episode's return",
                mend="set sampler.branches=1 and sampler.chains to the group's size",
            )
