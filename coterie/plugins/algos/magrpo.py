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
    """The candidates of one (node, role) share a baseline; a joint is worth its reward and what follows.

    Agents act at once and are paid together. Joint action g at a node returns R_g = r_g + gamma * mean of
    its children's returns (a leaf: r_g); A_g = R_g - mean over the node's candidates, not divided by a
    deviation. `pairing: aligned` plays K joints a node, `cross` all K^n; there a branch is worth the mean
    of the joints with it (the original sums them: the same up to a constant where the table is full). A
    branch weighs turn_weights[t] / (branches of that turn), or the last turn of a tree would have nearly
    all of the gradient.

    What it costs: K^(stages*T) leaves aligned, K^(n*T) cross. When it degenerates: with one turn and one
    agent it is Dr. GRPO; with K = 1 there is no baseline (refused); aligned, a role's action is judged
    together with whatever its partners drew beside it.
    """

    class Config(SumConfig):
        normalise: Normaliser = Field(default_factory=lambda: Normaliser(type="none"))
        turn_weights: tuple[float, ...] = Field(
            (),
            description="Weight in the loss of all branches of a turn together; default: 1 each.",
        )
        termination_threshold: float | None = Field(
            None, description="A joint action that earns at least this ends its episode; default: never."
        )

    group = "decision"
    returns = "tree"

    @property
    def stop_above(self) -> float | None:
        """For the sampler: a joint action whose reward reaches it is not expanded."""
        threshold: float | None = self.config.termination_threshold
        return threshold

    def check(self, plan: Plan, team: Team) -> None:
        super().check(plan, team)
        weights = self.config.turn_weights
        if weights and len(weights) != team.max_turns:
            raise ConfigError(
                f"{len(weights)} turn weights for {team.max_turns} turns",
                path="algorithm.turn_weights",
                fix="give one for each of team.max_turns, or leave the key out",
            )
        if weights and (min(weights) < 0 or not 0 < sum(weights) < math.inf):
            raise ConfigError(
                "turn weights are 0 or more, and not all 0",
                path="algorithm.turn_weights",
                why=f"got {list(weights)}",
                fix="give every turn its share of the gradient, e.g. 1 each",
            )

    def __call__(self, batch: Batch, state: Any) -> tuple[Credit, Any]:
        credit, state = super().__call__(batch, state)
        weight = turn_weights(batch.trees, credit.advantage, self.config.turn_weights)
        return dataclasses.replace(credit, weight=weight), state
