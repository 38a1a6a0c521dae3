"""MAGRPO: multi-agent GRPO over trees of joint actions (arXiv 2508.04652)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from pydantic import Field

from coterie.core.errors import ConfigError
from coterie.core.protocols import Batch, Plan, Team
from coterie.core.types import Credit
from coterie.plugins.algos.blocks.estimator import GroupEstimator, SumConfig
from coterie.plugins.algos.blocks.groups import Normaliser, turn_weights


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

    class Config(SumConfig):
        normalise: Normaliser = Field(default_factory=lambda: Normaliser(type="none"))
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
