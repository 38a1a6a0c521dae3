"""The components of a run: what a configuration composes, before anything is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from coterie.core.config import Resolved, RunConfig
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import (
    AdvantageEstimator,
    ChatFormat,
    Engine,
    Environment,
    Executor,
    Loss,
    NamedRewardSource,
    RolloutSide,
    Sampler,
    TaskSource,
    Team,
    Tracker,
    Trainer,
)
from coterie.core.rollout.engine_client import LocalEngineClient
from coterie.core.rollout.side import LocalRolloutSide
from coterie.core.training.curriculum import Curriculum, trained_on
from coterie.core.training.tasks import TaskOrder
from coterie.core.types import RewardWeights


@dataclass(frozen=True)
class Components:
    """The components of one run."""

    resolved: Resolved
    rollout_side: LocalRolloutSide
    """The rollout side of this process: what the executor plays with, and what describes the game."""
    make_rollout_side: Callable[[], RolloutSide]
    """Makes it again, in any process. Picklable."""
    engine: Engine
    engine_client: LocalEngineClient
    estimator: AdvantageEstimator
    loss: Loss
    trainer: Trainer
    executor: Executor
    chat: ChatFormat
    trackers: Mapping[str, Tracker]
    notify: Callable[..., None]
    """Calls the observers of a hook, which is named first; its arguments go by keyword."""
    make_order: Callable[[Environment, TaskSource], TaskOrder]
    """Makes the order of an environment's train tasks."""
    curriculum: Curriculum | None = None
    """Levels whose tasks training plays instead of the environment's own."""

    @property
    def config(self) -> RunConfig:
        return self.resolved.config

    @property
    def environment(self) -> Environment:
        """The target environment."""
        return self.rollout_side.environment

    @property
    def team(self) -> Team:
        return self.rollout_side.team

    @property
    def sampler(self) -> Sampler:
        return self.rollout_side.sampler

    @property
    def reward_sources(self) -> Sequence[NamedRewardSource]:
        return self.rollout_side.reward_sources

    @property
    def reward_weights(self) -> RewardWeights:
        return self.rollout_side.reward_weights

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return self.rollout_side.vocabulary

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the annotations that the estimator or the loss reads."""
        return tuple(sorted({*self.estimator.needs, *self.loss.needs}))

    @cached_property
    def orders(self) -> list[TaskOrder]:
        """The order of the train tasks: the environment's, or those of each level of the curriculum."""
        with plugin_call(self.environment, "tasks"):
            played = trained_on(self.environment, self.curriculum, self.config.seed)
            return [self.make_order(environment, tasks) for environment, tasks in played]
