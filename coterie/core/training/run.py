"""A composed run: everything that `loop.train` calls, in the order it is called."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from coterie.core.concurrency.request_batching import ActiveRollouts
from coterie.core.config import PolicyConfig, Resolved, RunConfig
from coterie.core.errors import TooManyMissing
from coterie.core.plugins import plugins
from coterie.core.protocols import EngineContext, Environment, NamedRewardSource, Team, TrainerContext
from coterie.core.rollout.context import RolloutPass
from coterie.core.rollout.rewards import missing_share, score_episodes
from coterie.core.storage.checkpoint import Checkpoint, CheckpointStore
from coterie.core.storage.run_folder import RunFolder
from coterie.core.training.curriculum import Curriculum
from coterie.core.training.metrics import step_metrics
from coterie.core.training.samples import merge_annotations, samples_of
from coterie.core.training.schedule import End, end_of, tokens_until
from coterie.core.training.tasks import TaskOrder
from coterie.core.types import Annotations, Credit, Key, RewardWeights, Sample, Scores, Task, Tree

log = logging.getLogger("coterie")
RARELY = (100_000, 50, 1000)
"""Thresholds of the garbage collector while a run is open."""
Progress = Callable[[int, int, Mapping[str, Any]], None]
"""Called after each step with the steps done, the steps expected (`End.expected`) and the step's metrics."""

Recorder = Callable[[int, Sequence[Tree], Scores, Credit], None]
"""Writes the rollouts of a step: (step, trees, scores, credit)."""


@dataclass(slots=True)
class Run:
    """All components of one run, and its progress."""

    resolved: Resolved
    environment: Environment
    team: Team
    reward_sources: Sequence[NamedRewardSource]
    reward_weights: RewardWeights
    sampler: Any
    estimator: Any
    loss: Any
    engine: Any
    trainer: Any
    executor: Any
    chat: Any
    trackers: Mapping[str, Any]
    active_rollouts: ActiveRollouts
    vocabulary: tuple[str, ...]
    resources: Sequence[Any] = ()
    """Sandboxes and tools, inner ones before those that use them."""
    curriculum: Curriculum | None = None
    """Levels whose tasks training plays instead of the environment's own."""

    folder: RunFolder | None = None
    store: CheckpointStore | None = None
    progress: Progress | None = None
    interrupt: Event | None = None
    recorder: Recorder | None = None

    done: int = 0
    """Training steps completed."""
    tokens: int = 0
    """Tokens generated in these steps, by all roles on all branches."""
    credit_state: Any = None
    best: float = -math.inf
    """Best success on `val`; the test split is never evaluated in a run."""
    best_step: int | None = None
    """The step of the best success."""
    metrics: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    """Seconds of training, over all processes that worked on the run."""
    _order: TaskOrder | None = None
    _pass: RolloutPass | None = None
    _clock: dict[str, float] = field(default_factory=dict)
    _started: float = 0.0
    _collector: tuple[int, int, int] = field(default_factory=gc.get_threshold)

    @property
    def config(self) -> RunConfig:
        return self.resolved.config

    @property
    def order(self) -> TaskOrder:
        """The order of the train tasks: the environment's, or those of the curriculum's present level."""
        if self.curriculum is not None:
            return self.curriculum.order(self.config.seed, self.config.schedule.stratify)
        if self._order is None:
            self._order = TaskOrder(
                self.environment.tasks("train", self.config.seed),
                self.config.seed,
                stratify=self.config.schedule.stratify,
            )
        return self._order

    @property
    def end(self) -> End:
        """When the run ends."""
        return end_of(self.config.schedule, lambda: len(self.order))

    @property
    def finished(self) -> bool:
        return self.end.reached(self.done, self.tokens)

    # ---------------------------------------------------------------------------------------- life

    async def open(
        self, restore: Path | None = None, *, extra_policies: Mapping[str, PolicyConfig] | None = None
    ) -> None:
        """Make weights and connections. The engine has no weights yet: `sync` gives it the trainer's.

        Args:
            restore: a checkpoint's folder; None: fresh weights.
            extra_policies: policies that the engine plays beside the team's; the trainer has none of them.
        """
        config = self.config
        # A step's trees all live until its end, and Python's collector would walk them again and again:
        # half of the framework's time (benchmarks/orchestration.py).
        self._collector = gc.get_threshold()
        gc.set_threshold(*RARELY)
        for resource in self.resources:
            if hasattr(resource, "open"):
                await resource.open()
        await self.engine.open(
            EngineContext(
                policies={**config.policies, **(extra_policies or {})},
                chat=self.chat,
                active_rollouts=self.active_rollouts,
                deterministic=config.deterministic,
                vocabulary=self.vocabulary,
            )
        )
        await self.open_trainer(restore)

    async def open_trainer(self, restore: Path | None = None) -> None:
        """Make the trainer's weights alone, or read them from a checkpoint's folder."""
        config = self.config
        needs = tuple(sorted({*self.estimator.needs, *self.loss.needs}))
        await self.trainer.open(
            TrainerContext(
                policies=config.policies,
                loss=self.loss,
                chat=self.chat,
                seed=config.seed,
                deterministic=config.deterministic,
                vocabulary=self.vocabulary,
                needs=needs,
            )
        )
        if restore is not None:
            self.trainer.load(restore)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Stand where a checkpoint stood; the weights follow in `open`."""
        self.done = checkpoint.step
        self.credit_state = checkpoint.meta["credit_state"]
        self.best = -math.inf if checkpoint.meta["best"] is None else checkpoint.meta["best"]
        self.best_step = checkpoint.meta["best_step"]
        self.tokens = tokens_until(checkpoint, self.folder)
        if self.curriculum is not None:
            self.curriculum.restore(checkpoint.meta["curriculum"])
        self.seconds = float(checkpoint.meta["seconds"])
        if self.store is not None and self.best_step in self.store.steps():
            # A kill between a checkpoint and its mark must not lose the mark.
            self.store.mark("best", self.best_step)

    async def close(self) -> None:
        gc.set_threshold(*self._collector)
        await self.engine.close()
        await self.trainer.close()
        for resource in reversed(self.resources):
            if hasattr(resource, "close"):
                await resource.close()
        for tracker in self.trackers.values():
            tracker.close()

    async def sync(self) -> None:
        """Give the engine the weights that changed."""
        for policy in self.config.policies:
            weights = self.trainer.weights(policy)
            if self.versions.get(policy) != weights.version:
                await self.engine.load_weights(weights)
                self.versions[policy] = weights.version

    # ------------------------------------------------------------------------------- the loop's parts

    async def rollouts(self) -> AsyncIterator[tuple[int, list[Tree]]]:
        """(step, trees) of every step that is left; `step` counts from 1."""
        schedule = self.config.schedule
        begin = time.perf_counter() - self.seconds
        while not self.finished and not self._stopped(begin):
            self._started = time.perf_counter()
            tasks = self.order.step(self.done, schedule.tasks_per_step)
            trees = await self.play(tasks)
            self._lap("rollouts")
            yield self.done + 1, trees
            self.seconds = time.perf_counter() - begin

    def _stopped(self, begin: float) -> bool:
        limit = self.config.schedule.stop_after
        if self.interrupt is not None and self.interrupt.is_set():
            return True
        return limit is not None and time.perf_counter() - begin >= limit

    def new_pass(
        self, *, evaluation: bool = False, policies: Mapping[str, str | None] | None = None
    ) -> RolloutPass:
        level = None if evaluation or self.curriculum is None else self.curriculum.level
        return RolloutPass(
            environment=self.environment if level is None else level.environment,
            team=self.team,
            engine=self.engine,
            reward_sources=self.reward_sources,
            reward_weights=self.reward_weights,
            active_rollouts=self.active_rollouts,
            run_seed=self.config.seed,
            evaluation=evaluation,
            policies=dict(policies or {}),
            stop_above=None if evaluation else getattr(self.estimator, "stop_above", None),
        )

    async def play(self, tasks: Sequence[tuple[Task, int]]) -> list[Tree]:
        """All chains of the tasks, played together."""
        self._pass = self.new_pass()
        items = [(task, epoch, chain) for task, epoch in tasks for chain in range(self.sampler.plan.chains)]
        return await self.play_with(self.sampler, self._pass, items)

    async def play_with(
        self, sampler: Any, context: RolloutPass, items: Sequence[tuple[Task, int, int]]
    ) -> list[Tree]:
        """Play (task, epoch, chain) items as concurrent rollouts through the executor."""

        async def play_item(item: tuple[Task, int, int]) -> Tree:
            self.active_rollouts.start()
            try:
                tree: Tree = await sampler.play(*item, context)
            finally:
                self.active_rollouts.stop()
            plugins().notify("episode_ended", tree=tree, scores=context.scores, evaluation=context.evaluation)
            return tree

        trees: list[Tree] = await self.executor.map(play_item, items)
        return trees

    async def score(self, trees: Sequence[Tree], context: RolloutPass | None = None) -> Scores:
        """Complete the scores that play left open. Missing stays missing, and too much of it stops the run.

        Raises:
            TooManyMissing: the share of missing scores passed `schedule.max_missing`.
        """
        context = context or self._pass
        assert context is not None, "score comes after play"
        if context.background:
            await asyncio.gather(*context.background)
        await score_episodes(self.reward_sources, context.scores, trees, list(self.team.roles))
        missing, count, reasons = missing_share(context.scores)
        bound = self.config.schedule.max_missing
        if count and missing / count > bound:
            most = sorted(reasons.items(), key=lambda item: -item[1])[:3]
            raise TooManyMissing(
                f"{missing} of {count} scores of this step are missing: above schedule.max_missing={bound}"
                + "".join(f"\n  {number} x {reason}" for reason, number in most)
            )
        return context.scores

    async def annotate(self, trees: Sequence[Tree]) -> Annotations:
        """Per-token arrays that the estimator or the loss needs: reference log-probs, values."""
        annotations: Annotations = {}
        for name in sorted({*self.estimator.needs, *self.loss.needs}):
            branches = {
                key: 0.0
                for tree in trees
                for node in tree.nodes()
                for role, decision in node.decisions.items()
                for key in (node.key.of_branch(role, branch) for branch in range(len(decision.branches)))
            }
            samples = samples_of(trees, Credit(advantage=dict[Key, Any](branches)))
            values: dict[Key, Any] = {}
            for rows in samples.values():
                values.update(await self.trainer.annotate(rows, name))
            annotations.update(merge_annotations(samples, name, values))
        return annotations

    def samples(
        self, trees: Sequence[Tree], credit: Credit, annotations: Annotations
    ) -> dict[str, list[Sample]]:
        """By policy: the samples of its roles, with their advantages."""
        return samples_of(trees, credit, annotations)

    async def update(self, samples: Mapping[str, Sequence[Sample]]) -> dict[str, Any]:
        """Update every policy on the samples of the roles it plays; then give the weights to the engine."""
        self._lap("credit")
        spent = self.end.spent(self.tokens)  # before this step, so that the first step's rate has not decayed
        if spent is not None and hasattr(self.trainer, "set_progress"):
            self.trainer.set_progress(spent)
        updated = await self.trainer.update(samples, self.done)
        await self.sync()
        self._lap("update")
        return {
            f"policy/{policy}/{name}": value
            for policy, metrics in updated.items()
            for name, value in metrics.items()
        }

    def record(
        self, step: int, trees: Sequence[Tree], scores: Scores, credit: Credit, updated: Mapping[str, Any]
    ) -> None:
        """Record the step: its row of metrics, and its rollouts."""
        row = {**step_metrics(trees, scores, credit, self.reward_weights), **updated}
        generated = int(row["tokens/generated"])
        self.end.check(generated)
        self.tokens += generated
        row["tokens/total"] = self.tokens
        if self.curriculum is not None:
            row |= self.curriculum.record(trees)
        every = self.config.schedule.record_every
        if self.recorder is not None and every and step % every == 0:
            self.recorder(step, trees, scores, credit)
        self._lap("record")
        spent = time.perf_counter() - self._started
        row |= {f"time/{name}": value for name, value in self._clock.items()}
        row |= {
            "time/step": spent,
            "time/tokens_per_second": row.get("tokens/generated", 0.0) / max(spent, 1e-9),
        }
        self._clock = {}
        self.metrics = row

    def finish(self, step: int) -> None:
        """Give the step's row to trackers, observers and the progress display."""
        self.done = step
        for tracker in self.trackers.values():
            tracker.track(step, self.metrics)
        plugins().notify("step_ended", step=step, metrics=self.metrics)
        if self.progress is not None:
            self.progress(step, self.end.expected(step, self.tokens), self.metrics)

    def checkpoint_if_due(self, step: int) -> None:
        """Save where the schedule says so, where the run ends, and where `val` was never better."""
        if step == self.best_step:
            self.checkpoint(step)
            if self.store is not None:
                self.store.mark("best", step)
        every = self.config.schedule.checkpoint_every
        interrupted = self.interrupt is not None and self.interrupt.is_set()
        if self.finished or interrupted or (every and step % every == 0):
            self.checkpoint(step)

    def checkpoint(self, step: int) -> None:
        """Save all that an exact resume needs; a checkpoint that is there already is not written again."""
        if self.store is None or step in self.store.steps():
            return
        self.store.save(
            step,
            self.trainer.save,
            {
                "credit_state": self.credit_state,
                "best": None if math.isinf(self.best) else self.best,
                "best_step": self.best_step,
                "total_steps": self.end.steps,
                "tokens": self.tokens,
                "curriculum": self.curriculum.state() if self.curriculum is not None else None,
                "config_digest": self.resolved.digest(),
                "weights": self.trainer.digest(),
                "seconds": self.seconds,
            },
        )

    def _lap(self, name: str) -> None:
        now = time.perf_counter()
        self._clock[name] = now - self._started - sum(self._clock.values())
