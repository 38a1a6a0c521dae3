"""A composed run: everything that `loop.train` calls, in the order it is called."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import Any

from coterie.core.config import PolicyConfig, Resolved, RunConfig
from coterie.core.plugins import plugins
from coterie.core.plugins.origin import closed, plugin_call, plugin_open
from coterie.core.protocols import (
    AdvantageEstimator,
    Batch,
    ChatFormat,
    Engine,
    EngineContext,
    Environment,
    Executor,
    ExecutorContext,
    Loss,
    NamedRewardSource,
    RolloutJob,
    RolloutSide,
    Sampler,
    Team,
    Tracker,
    Trainer,
    TrainerContext,
)
from coterie.core.protocols.trainer import FollowsBudget
from coterie.core.rollout.contracts import check_given, check_metric_names, check_rollouts, check_table
from coterie.core.rollout.engine_client import LocalEngineClient
from coterie.core.rollout.missing import check_missing, check_parsers
from coterie.core.rollout.side import LocalRolloutSide
from coterie.core.storage.checkpoint import Checkpoint, CheckpointWriter
from coterie.core.storage.run_folder import RunFolder
from coterie.core.training.curriculum import Curriculum, trained_on
from coterie.core.training.metrics import step_metrics
from coterie.core.training.metrics_writer import MetricsWriter
from coterie.core.training.samples import branches, merge_annotations, samples_of
from coterie.core.training.schedule import End, Unsaved, end_of, tokens_until
from coterie.core.training.state import RunState
from coterie.core.training.step_rollouts import Progress as Progress, Recorder, StepRollouts, Watch
from coterie.core.training.tasks import TaskOrder
from coterie.core.types import Annotations, Credit, Key, RewardWeights, Scores

RARELY = (100_000, 50, 1000)
"""Thresholds of the garbage collector while a run is open."""


@dataclass(frozen=True)
class Run:
    """All components of one run. Only its `state` changes."""

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
    curriculum: Curriculum | None = None
    """Levels whose tasks training plays instead of the environment's own."""
    state: RunState = field(default_factory=RunState)
    evaluate_every: int = 0
    """Steps between evaluations on `val`; 0: none. `auto` is decided by `api/val_interval.py`."""
    unsaved: Unsaved = field(default_factory=Unsaved)
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Versions and digests of files, for what is written of evaluations."""

    folder: RunFolder | None = None
    store: CheckpointWriter | None = None
    progress: Progress | None = None
    interrupt: Event | None = None
    recorder: Recorder | None = None
    watch: Watch | None = None
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

    @cached_property
    def metrics_writer(self) -> MetricsWriter:
        return MetricsWriter(self.trackers)

    @cached_property
    def _orders(self) -> list[TaskOrder]:
        """The order of the train tasks: the environment's, or those of each level of the curriculum."""
        stratify = self.config.schedule.stratify
        with plugin_call(self.environment, "tasks"):
            played = trained_on(self.environment, self.curriculum, self.config.seed)
            return [TaskOrder(tasks, self.config.seed, stratify=stratify) for _, tasks in played]

    @property
    def order(self) -> TaskOrder:
        """The order of the train tasks that are played now.

        Raises:
            ConfigError: the train split, or that of a level, has no tasks.
        """
        return self._orders[self.level or 0]

    @property
    def level(self) -> int | None:
        """Index of the curriculum's present level."""
        return None if self.state.curriculum is None else self.state.curriculum.level

    @property
    def end(self) -> End:
        """When the run ends."""
        return end_of(self.config.schedule, lambda: len(self.order))

    @property
    def finished(self) -> bool:
        return self.end.reached(self.state.step, self.state.tokens)

    @property
    def interrupted(self) -> bool:
        return self.interrupt is not None and self.interrupt.is_set()

    # ---------------------------------------------------------------------------------------- life

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
        tokens = tokens_until(checkpoint, self.folder)
        self.state.restore(checkpoint.step, {**checkpoint.meta, "tokens": tokens})
        best, store = self.state.best_step, self.store
        if store is not None and best in store.steps() and store.marks().get("best") != best:
            store.mark("best", best)  # a kill between a checkpoint and its mark must not lose the mark

    async def close(self) -> None:
        """Close what `open` opened, and the trackers."""
        self.closing.callback(self.metrics_writer.close, self.state.step)
        await self.closing.aclose()

    async def sync(self, before: Mapping[str, int] | None = None) -> None:
        """Give the engine the weights of all policies; with `before`, of those whose version differs."""
        for policy in self.config.policies:
            weights = check_given(self.trainer, "weights", self.trainer.weights(policy), "Weights")
            if before is None or before[policy] != weights.version:
                with plugin_call(self.engine, "load_weights"):
                    await self.engine.load_weights(weights)

    @property
    def versions(self) -> dict[str, int]:
        """The version of each policy's weights."""
        with plugin_call(self.trainer, "weights"):
            return {policy: self.trainer.weights(policy).version for policy in self.config.policies}

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the annotations that the estimator or the loss reads."""
        return tuple(sorted({*self.estimator.needs, *self.loss.needs}))

    # ------------------------------------------------------------------------------- the loop's parts

    async def rollouts(self) -> AsyncIterator[tuple[int, StepRollouts]]:
        """(step, rollouts) of every step that is left; `step` counts from 1."""
        schedule, state = self.config.schedule, self.state
        self.unsaved.since = self.unsaved.step_began = time.perf_counter()
        begin = self.unsaved.since - state.seconds
        limit = schedule.stop_after or float("inf")
        while not (self.finished or self.interrupted or time.perf_counter() - begin >= limit):
            yield state.step + 1, await self.play(self.jobs(schedule.tasks_per_step))
            state.seconds = time.perf_counter() - begin

    def jobs(self, tasks: int) -> list[RolloutJob]:
        """The jobs of the next step, if it plays `tasks` tasks."""
        versions = self.versions
        return [
            RolloutJob(task=task, epoch=epoch, chain=chain, level=self.level, versions=versions)
            for task, epoch in self.order.step(self.state.step, tasks)
            for chain in range(self.sampler.plan.chains)
        ]

    async def play(self, jobs: Sequence[RolloutJob]) -> StepRollouts:
        """The rollouts of the jobs, in their order, once all trees are played."""
        started = time.perf_counter()
        with plugin_call(self.executor, "play"):
            played = await self.executor.play(jobs)
        check_rollouts(self.executor, jobs, played)
        rollouts = StepRollouts(played, started)
        rollouts.lap("rollouts")
        return rollouts

    async def score(self, rollouts: StepRollouts, *, evaluation: bool = False) -> Scores:
        """The scores of all trees, when the last one is known. Missing stays missing.

        Raises:
            TooManyMissing, PluginError: see `check_missing` and `check_parsers`.
        """
        scores = Scores()
        for rollout in rollouts.rollouts:
            scores.merge((await rollout.scored).scores)
        for tree in rollouts.trees:
            plugins().notify("episode_ended", tree=tree, scores=scores, evaluation=evaluation)
        where = "this evaluation" if evaluation else "this step"
        bound = self.config.schedule.max_missing
        check_missing(rollouts.trees, scores, self.reward_sources, bound, where)
        check_parsers([] if evaluation else rollouts.trees, self.team)
        return scores

    async def annotate(self, rollouts: StepRollouts) -> Annotations:
        """Per-token arrays that the estimator or the loss needs: reference log-probs, values."""
        annotations: Annotations = {}
        for name in self.needs:
            samples = samples_of(
                rollouts.trees, Credit(advantage=dict.fromkeys(branches(rollouts.trees), 0.0))
            )
            values: dict[Key, Any] = {}
            for rows in samples.values():
                with plugin_call(self.trainer, "annotate"):
                    values.update(await self.trainer.annotate(rows, name))
            annotations.update(merge_annotations(samples, name, values))
        return annotations

    async def update(
        self, rollouts: StepRollouts, credit: Credit, annotations: Annotations
    ) -> dict[str, Any]:
        """Update every policy on the samples of the roles it plays; then give the weights to the engine.

        Returns:
            the trainer's metrics, as `policy/<policy>/<name>`.
        """
        samples = samples_of(rollouts.trees, credit, annotations)
        rollouts.lap("credit")
        spent = self.end.spent(self.state.tokens)  # before this step: the first step's rate has not decayed
        if spent is not None and isinstance(self.trainer, FollowsBudget):
            self.trainer.set_progress(spent)
        before = self.versions
        with plugin_call(self.trainer, "update"):
            updated = await self.trainer.update(samples, self.state.step)
        check_table(self.trainer, "update", updated)
        await self.sync(before)
        rollouts.lap("update")
        return {
            f"policy/{policy}/{name}": value
            for policy, metrics in updated.items()
            for name, value in metrics.items()
        }

    def record(self, step: int, batch: Batch, state: Any, credit: Credit) -> None:
        """Record the rollouts, and the estimator's `state` before the step, where the schedule says so."""
        every = self.config.schedule.record_every
        if self.recorder is not None and every and step % every == 0:
            self.recorder(step, batch, state, credit)

    def metrics(
        self, step: int, rollouts: StepRollouts, scores: Scores, credit: Credit, updated: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The step's row of metrics; the token count and the curriculum move on.

        Raises:
            PluginError: the sampler counted a metric under a name of the framework's.
        """
        trees = rollouts.trees
        row = {**step_metrics(trees, scores, credit, self.reward_weights), **updated}
        generated = int(row["tokens/generated"])
        self.end.check(generated)
        self.state.tokens += generated
        row["tokens/total"] = self.state.tokens
        if self.curriculum is not None and self.state.curriculum is not None:
            row |= self.curriculum.record(trees, self.state.curriculum)
        counted = rollouts.counted
        check_metric_names(self.sampler, "count", counted.keys() - {"prompts/truncated"})  # ours
        rollouts.lap("record")
        seconds = max(time.perf_counter() - rollouts.started, 1e-9)
        shares = {name[:-7] + "share": v / seconds for name, v in counted.items() if name[-8:] == "/seconds"}
        row |= {**counted, **shares, **{f"time/{part}": value for part, value in rollouts.laps.items()}}
        row |= {"time/step": seconds, "time/tokens_per_second": generated / seconds}
        return row if self.watch is None else {**row, **self.watch(step, row)}

    def finish(self, step: int, row: Mapping[str, Any]) -> None:
        """Count the step; its row goes to `metrics.jsonl`, trackers, observers and the progress display."""
        self.state.step = step
        self.metrics_writer.write(step, row)
        plugins().notify("step_ended", step=step, metrics=copy.deepcopy(row))
        if self.progress is not None:
            self.progress(step, self.end.expected(step, self.state.tokens), row)

    def checkpoint_if_due(self, step: int) -> None:
        """Save where schedule or time says so, where the run ends, and where `val` was never better."""
        evaluate = self.evaluate_every or float("inf")
        due = self.unsaved.due(step % evaluate == 0, (step + 1) % evaluate == 0)
        if step == self.state.best_step:
            self.checkpoint(step)
            if self.store is not None:
                self.store.mark("best", step)
        every = self.config.schedule.checkpoint_every
        if self.finished or self.interrupted or (due if every == "auto" else every and step % every == 0):
            self.checkpoint(step)

    def checkpoint(self, step: int) -> None:
        """Save all that an exact resume needs; a checkpoint that is there already is not written again."""
        if self.store is None or step in self.store.steps():
            return
        begin = time.perf_counter()
        with plugin_call(self.trainer, "save"):
            self.store.save(
                step,
                self.trainer.save,
                {
                    **self.state.as_meta(),
                    "total_steps": self.end.steps,
                    "config_digest": self.resolved.digest(),
                    "weights": self.trainer.digest(),
                },
            )
        self.unsaved.saved(begin)
