"""What rules between components look at."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from coterie.core.config import Resolved, RunConfig
from coterie.core.protocols import AdvantageEstimator, Engine, Environment, Executor, Loss, Team, Trainer
from coterie.core.rollout.side import LocalRolloutSide
from coterie.core.training.curriculum import Curriculum
from coterie.core.types.splits import Split


@dataclass(frozen=True, slots=True)
class RolloutParts:
    """The rollout side, with the components that the learning side uses too."""

    resolved: Resolved
    side: LocalRolloutSide
    estimator: AdvantageEstimator
    """It sets reward weights, and may end episodes."""
    curriculum: Curriculum | None

    @property
    def config(self) -> RunConfig:
        return self.resolved.config

    @property
    def environment(self) -> Environment:
        """The target environment."""
        return self.side.environment

    @property
    def team(self) -> Team:
        return self.side.team


@dataclass(frozen=True, slots=True)
class ComposedParts(RolloutParts):
    """The components of a run but for its engine and its trainer."""

    loss: Loss
    executor: Executor
    trainer_config: Any
    """The trainer's settings; None: it has none."""
    consumed: Collection[str]
    """Shared tables, and entries of such tables, that a component reads."""
    splits: Collection[Split]
    """Those that will be played."""


@dataclass(frozen=True, slots=True)
class WeightHolders:
    """What has the weights of a run."""

    config: RunConfig
    engine: Engine
    trainer: Trainer
    pinned: bool
    """Whether one version of each policy plays all of a step."""
