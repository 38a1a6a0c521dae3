"""The protocol of kind `estimator`: from a step's trees and scores to credit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from coterie.core.protocols.sampler import Plan
from coterie.core.protocols.team import Team
from coterie.core.types import Annotations, Credit, RewardWeights, Scores, Tree


@runtime_checkable
class AdvantageEstimator(Protocol):
    """Assigns credit to the branches of a step's trees."""

    needs: tuple[str, ...]
    """Names of the annotations it reads, e.g. ("ref_logprobs",)."""
    weights: Mapping[str, float]
    """Reward weights it sets, by component. The key `team` sets `RewardWeights.team_weight`."""

    def check(self, plan: Plan, team: Team) -> None:
        """Raise a `ConfigError` if the estimator is undefined for the sampling plan, e.g. a group of one."""

    def __call__(self, batch: Batch, state: Any) -> tuple[Credit, Any]:
        """The credit of a step, and the estimator's next state: JSON, None before the first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Input of an estimator: the rollouts of one step."""

    trees: Sequence[Tree]
    scores: Scores
    annotations: Annotations
    reward_weights: RewardWeights
