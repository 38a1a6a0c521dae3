"""The protocol of kind `estimator`, and the batch that it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from coterie.core.protocols.sampler import Plan
from coterie.core.protocols.team import Team
from coterie.core.types import Annotations, Credit, RewardWeights, Scores, Tree


@runtime_checkable
class AdvantageEstimator(Protocol):
    """From a step's trees and scores to credit."""

    needs: tuple[str, ...]
    """Notes it reads, e.g. ("ref_logprobs",)."""
    weights: Mapping[str, float]
    """Component weights that it sets in the Mix; `team` scales every team component (alpha)."""

    # Optional: sums_over_turns: bool, its return adds up turns (what can be farmed is then refused);
    # stop_above: float | None, a joint that earns at least this is not played on.

    def check(self, plan: Plan, team: Team) -> None:
        """Raise `ConfigError` where the sampling plan gives this estimator no meaning."""

    def __call__(self, batch: Batch, state: Any) -> tuple[Credit, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What an estimator is given."""

    trees: Sequence[Tree]
    scores: Scores
    annotations: Annotations
    reward_weights: RewardWeights
