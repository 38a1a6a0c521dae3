"""A run between `open` and `close`: its components, its weights, where it stands, and its checkpoints."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from coterie.core.config import PolicyConfig, Resolved, RunConfig
from coterie.core.plugins.origin import closed, plugin_call, plugin_open
from coterie.core.protocols import (
    AdvantageEstimator,
    ChatFormat,
    Engine,
    EngineContext,
    Environment,
    Executor,
    ExecutorContext,
    Loss,
    NamedRewardSource,
    RolloutSide,
    Sampler,
    TaskSource,
    Team,
    Tracker,
    Trainer,
    TrainerContext,
)
from coterie.core.rollout.contracts import check_weights, refuse
from coterie.core.rollout.engine_client import LocalEngineClient
from coterie.core.rollout.side import LocalRolloutSide
from coterie.core.storage.checkpoint import Checkpoint, CheckpointWriter
from coterie.core.storage.run_folder import RunFolder
from coterie.core.training.curriculum import Curriculum, TaskOrder, trained_on
from coterie.core.training.metrics_writer import MetricsWriter
from coterie.core.training.schedule import End, Unsaved, end_of
from coterie.core.training.state import RunState
from coterie.core.types import RewardWeights
from coterie.spans import span

RARELY = (100_000, 50, 1000)
"""Thresholds of the garbage collector while a run is open."""


@dataclass(frozen=True)
class RunLifetime:
    """The components of a run, which it opens and closes, and its state, which it keeps in checkpoints."""

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
    state: RunState = field(default_factory=RunState)
    unsaved: Unsaved = field(default_factory=Unsaved)
    folder: RunFolder | None = None
    store: CheckpointWriter | None = None
    pinned: bool = True
    """Whether one version of each policy plays all of a step; else the newest weights do, as they arrive."""
    closing: AsyncExitStack = field(default_factory=AsyncExitStack)
    """What `close` undoes, newest first."""

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

    @cached_property
    def metrics_writer(self) -> MetricsWriter:
        return MetricsWriter(self.trackers)

    @property
    def order(self) -> TaskOrder:
        """The order of the train tasks that are played now.

        Raises:
            ConfigError: the train split, or that of a level, has no tasks.
        """
        return self.orders[self.level or 0]

    @property
    def level(self) -> int | None:
        """Index of the curriculum's present level."""
        return None if self.state.curriculum is None else self.state.curriculum.level

    @property
    def ahead(self) -> int:
        """Steps in play beside the one that is due."""
        return self.config.schedule.max_staleness

    @property
    def end(self) -> End:
        """When the run ends."""
        return end_of(self.config.schedule, lambda: len(self.order))

    @property
    def finished(self) -> bool:
        return self.end.reached(self.state.step, self.state.tokens)

    async def open(
        self, restore: Path | None = None, *, extra_policies: Mapping[str, PolicyConfig] | None = None
    ) -> None:
        """Make weights and connections. The engine has no weights yet: `sync` gives it the trainer's.

        Args:
            restore: a checkpoint's folder; None: fresh weights.
            extra_policies: policies that the engine plays beside the team's; the trainer has none of them.
        """
        # A step's trees all live until its end, and Python's collector would walk them again and again:
        # half of the framework's time (benchmarks/orchestration.py).
        self.closing.callback(gc.set_threshold, *gc.get_threshold())
        gc.set_threshold(*RARELY)
        self.closing.push_async_callback(closed, self.engine)
        ctx = EngineContext(
            policies={**self.config.policies, **(extra_policies or {})},
            chat=self.chat,
            active_rollouts=self.engine_client.active_rollouts,
            deterministic=self.config.deterministic,
            vocabulary=self.vocabulary,
            ahead=self.ahead,
            pinned=self.pinned,
        )
        with plugin_open(self.engine):
            await self.engine.open(ctx)
        self.closing.push_async_callback(closed, self.executor)
        make_side, client = self.make_rollout_side, self.engine_client
        with plugin_open(self.executor):
            await self.executor.open(
                ExecutorContext(side=self.rollout_side, make_side=make_side, engine=client)
            )
        self.closing.push_async_callback(closed, self.trainer)
        await self.open_trainer(restore)

    async def open_trainer(self, restore: Path | None = None) -> None:
        """Make the trainer's weights alone, or read them from a checkpoint's folder."""
        ctx = TrainerContext(
            policies=self.config.policies,
            loss=self.loss,
            chat=self.chat,
            seed=self.config.seed,
            deterministic=self.config.deterministic,
            vocabulary=self.vocabulary,
            needs=self.needs,
        )
        with plugin_open(self.trainer):
            await self.trainer.open(ctx)
        if restore is not None:
            with plugin_call(self.trainer, "load"):
                self.trainer.load(restore)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Stand where a checkpoint stood; the weights follow in `open`."""
        self.state.restore(checkpoint.step, checkpoint.meta)
        best, store = self.state.best_step, self.store
        if store is not None and best in store.steps() and store.marks().get("best") != best:
            store.mark("best", best)  # a kill between a checkpoint and its mark must not lose the mark

    async def close(self) -> None:
        """Close what `open` opened, and the trackers."""
        self.closing.callback(self.metrics_writer.close, self.state.step)
        await self.closing.aclose()

    async def sync(self, before: Mapping[str, int] | None = None) -> set[str]:
        """Give the engine the weights of all policies; with `before`, of those whose version differs.

        Returns:
            the policies whose weights it got.

        Raises:
            PluginError: an update raised a version by anything but 1.
        """
        given: set[str] = set()
        for policy in self.config.policies:
            weights = check_weights(self.trainer, "weights", self.trainer.weights(policy), policy)
            if before is not None and weights.version - before[policy] not in (0, 1):
                what = f"version {weights.version} of '{policy}', after version {before[policy]}"
                fix = "an update raises a policy's version by 1, or leaves it where it changes nothing"
                refuse(self.trainer, "weights", what, fix)
            if before is None or before[policy] != weights.version:
                with span("sync", policy), plugin_call(self.engine, "load_weights"):
                    await self.engine.load_weights(weights)
                given.add(policy)
        return given

    @property
    def versions(self) -> dict[str, int]:
        """The version of each policy's weights."""
        with plugin_call(self.trainer, "weights"):
            return {policy: self.trainer.weights(policy).version for policy in self.config.policies}

    def checkpoint(self, step: int) -> None:
        """Save all that an exact resume needs; a checkpoint that is there already is not written again."""
        if self.store is None or step in self.store.steps():
            return
        begin = time.perf_counter()
        with span("checkpoint", str(step)), plugin_call(self.trainer, "save"):
            config, weights = self.resolved.digest(), self.trainer.digest()
            known = {"total_steps": self.end.steps, "config_digest": config, "weights": weights}
            self.store.save(step, self.trainer.save, {**self.state.as_meta(), **known})
        self.unsaved.saved(begin)
