"""The steps that a run has in play: which jobs they have, and what weights play them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coterie.core.concurrency.active_rollouts import together
from coterie.core.config import PolicyConfig
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import Batch, Rollout, RolloutJob
from coterie.core.protocols.engine import LeasesVersions
from coterie.core.protocols.trainer import KeepsVersions
from coterie.core.rollout.contracts import check_async, check_rollout, check_weights, refuse
from coterie.core.rollout.engine_client import STEP
from coterie.core.training.lifetime import RunLifetime
from coterie.core.training.metrics_writer import MetricsWriter
from coterie.core.training.state import Pin
from coterie.core.types import Credit, Key, Tree
from coterie.core.types.seeding import seed64

Progress = Callable[[int, int, Mapping[str, Any]], None]
"""Called after each step with the steps done, the steps expected (`End.expected`) and the step's metrics."""

Recorder = Callable[[int, Batch, Any, Credit, MetricsWriter], None]
"""Takes every step's rollouts: (step, the estimator's batch, its state before the step, credit, trackers)."""

Watch = Callable[[int, Mapping[str, Any]], Mapping[str, Any]]
"""Reads a step's metrics before they are stored; returns what it adds to them."""


@dataclass(frozen=True, slots=True)
class StepRollouts:
    """The rollouts of one step, and the time that its parts took."""

    rollouts: Sequence[Rollout]
    ended: Sequence[float]
    """Seconds from the step's handing out to each tree, in the order in which they were played."""
    handed_out: int
    """`time.time_ns` when its jobs were."""
    started: float = 0.0
    """`time.perf_counter` when the step began."""
    laps: dict[str, float] = field(default_factory=dict)
    """Seconds by part of the step."""

    @property
    def trees(self) -> list[Tree]:
        return [rollout.tree for rollout in self.rollouts]

    @property
    def long_tail(self) -> float:
        """The share of the play in which only the slowest tenth of the trees (at least one) still played."""
        most = [0.0, *self.ended][-1 - max(1, len(self.ended) // 10)]
        return 1.0 - most / max(self.ended[-1], 1e-9)

    @property
    def counted(self) -> Counter[str]:
        """What plugins counted in the episodes (`ctx.count`), once all scores are known."""
        counted: Counter[str] = Counter()
        for rollout in self.rollouts:
            counted.update(rollout.scored.result().metrics)
        return counted

    def lap(self, part: str) -> None:
        """Ascribe the time since the last lap to a part of the step."""
        since = time.perf_counter() - self.started - sum(self.laps.values())
        self.laps[part] = self.laps.get(part, 0.0) + since


@dataclass(frozen=True)
class StepsInPlay(RunLifetime):
    """A run that plays up to `schedule.max_staleness` steps beside the one that is due.

    The jobs of step t are handed out once row t - 1 - N is written and its update is in the engine. So no
    token of step t is drawn by weights that are older than N updates, nothing is dropped, and which tasks a
    step plays does not depend on its speed (compare the bound of AReaL, arXiv 2505.24298). All tokens of a
    *pinned* step are of one version besides.
    """

    in_play: dict[int, asyncio.Task[tuple[list[Rollout], list[float], int]]] = field(default_factory=dict)
    """By step, from 1, handed out and not yet due: what `_played` returns."""

    async def open(
        self, restore: Path | None = None, *, extra_policies: Mapping[str, PolicyConfig] | None = None
    ) -> None:
        await super().open(restore, extra_policies=extra_policies)
        self.closing.push_async_callback(self.cancel)

    def jobs(self, step: int, tasks: int | None = None) -> list[RolloutJob]:
        """The jobs of a training step, from 1: with the level and the weights that it is pinned to.

        Args:
            tasks: number of tasks; None: `schedule.tasks_per_step`.
        """
        pin = self.pin(step)
        tasks = self.config.schedule.tasks_per_step if tasks is None else tasks
        return [
            RolloutJob(task=task, epoch=epoch, chain=chain, level=pin.level, versions=pin.versions,
                       cohort=self.cohort(step))
            for task, epoch in self.orders[pin.level or 0].step(step - 1, tasks)
            for chain in range(self.sampler.plan.chains)
        ]  # fmt: skip

    def cohort(self, step: int, evaluation: str = "") -> str:
        """The cohort of a step's jobs, or of an evaluation after it: what is due first comes first."""
        return f"{step:09d}{evaluation}" if self.pinned else ""

    async def play(self, jobs: Sequence[RolloutJob]) -> StepRollouts:
        """The rollouts of the jobs, in their order, once all trees are played."""
        started = time.perf_counter()
        rollouts = StepRollouts(*await self._played(jobs), started)
        rollouts.lap("rollouts")
        return rollouts

    async def _played(
        self, jobs: Sequence[RolloutJob], step: int = 0
    ) -> tuple[list[Rollout], list[float], int]:
        """The rollouts of a step in play, `StepRollouts.ended` and `StepRollouts.handed_out`."""
        STEP.set(step)
        share = self.metrics_writer.share or 0.0
        began, handed_out, ended = time.perf_counter(), time.time_ns(), list[float]()

        async def play(job: RolloutJob) -> Rollout:
            place = Key(job.task.id, job.epoch, job.chain)
            if share and (draw := seed64(self.config.seed, place, "spans") / 2**64) < share:
                job = replace(job, draw=draw)
            with plugin_call(self.executor, "play"):
                played = await check_async(self.executor, "play", self.executor.play(job))
            ended.append(time.perf_counter() - began)
            return check_rollout(self.executor, job, played)

        return await together(map(play, jobs)), ended, handed_out

    async def hand_out(self) -> None:
        """Hand out the jobs of every step that may be in play now."""
        for step in range(self.state.step + 1, self.state.step + self.ahead + 2):
            if step not in self.state.pins:
                self.state.pins[step] = await self._leased(self.pin(step))
            if step not in self.in_play and not self.end.reached(step - 1, self.state.tokens):
                self.in_play[step] = asyncio.ensure_future(self._played(self.jobs(step), step))
                self.engine_client.drawn[step] = 0

    async def due(self, step: int) -> StepRollouts:
        """The rollouts of a step that was handed out, once all its trees are played; its leases end."""
        started = time.perf_counter()
        rollouts = StepRollouts(*await self.in_play.pop(step), started)
        rollouts.lap("rollouts")
        if self.ahead and isinstance(self.engine, LeasesVersions):
            for policy, version in self.state.pins[step].versions.items():
                with plugin_call(self.engine, "release"):
                    await check_async(self.engine, "release", self.engine.release(policy, version))
        return rollouts

    def check_ages(self, ages: Mapping[str, Counter[int]], before: Mapping[str, int]) -> None:
        """Refuse samples of the step that is due which other weights drew than may have.

        Args:
            ages: by policy, how many tokens are how many updates old.
            before: the versions before the update.
        """
        pin = self.pin(self.state.step + 1)
        for policy, tokens in ages.items():
            version = pin.versions.get(policy)
            allowed = set(range(self.ahead + 1)) if version is None else {before[policy] - version}
            if wrong := tokens.keys() - allowed:
                age = max(wrong, key=abs)
                early = "by weights that the trainer hasn't made yet"
                what = f"tokens of policy '{policy}' {early if age < 0 else f'that are {age} updates old'}"
                if version is not None:  # what the engine drew was compared with the job
                    refuse(self.executor, "play", what, f"play each job with its versions, here {version}")
                refuse(self.engine, "generate", what, f"at most {self.ahead}: draw with what was loaded last")

    def forget(self, step: int) -> None:
        """Drop the pin of a step whose row is written, and the weights that no other step is pinned to."""
        pin = self.state.pins.pop(step, None)
        self.engine_client.drawn.pop(step, None)
        if self.ahead and pin is not None and isinstance(self.trainer, KeepsVersions):
            kept = {item for other in self.state.pins.values() for item in other.versions.items()}
            for policy, version in pin.versions.items() - kept:
                with plugin_call(self.trainer, "drop"):
                    self.trainer.drop(policy, version)

    async def cancel(self) -> None:
        """Cancel all that is in play."""
        playing = [*self.in_play.values()]
        self.in_play.clear()
        for each in playing:
            each.cancel()
        await asyncio.gather(*playing, return_exceptions=True)

    def pin(self, step: int) -> Pin:
        """What a step in play is played with; of another step, what it would be if it were handed out now."""
        present = Pin(self.versions if self.pinned else {}, self.level)
        return self.state.pins.get(step, present)

    async def _leased(self, pin: Pin) -> Pin:
        """Keep the weights of a pin, the newest, in engine and trainer."""
        if self.ahead and isinstance(self.engine, LeasesVersions) and isinstance(self.trainer, KeepsVersions):
            for policy, version in pin.versions.items():
                with plugin_call(self.engine, "lease"):
                    await check_async(self.engine, "lease", self.engine.lease(policy, version))
                with plugin_call(self.trainer, "keep"):
                    self.trainer.keep(policy)
        return pin

    async def lease_again(self) -> None:
        """Give the engine the older weights that a checkpoint's steps in play are pinned to."""
        engine, trainer, newest = self.engine, self.trainer, self.versions
        if not (self.ahead and isinstance(engine, LeasesVersions) and isinstance(trainer, KeepsVersions)):
            return
        for policy, present in newest.items():
            leases = Counter(pin.versions[policy] for pin in self.state.pins.values() if pin.versions)
            for version in sorted(leases.keys() | {present}) if leases else ():
                method = "weights" if version == present else "weights_at"
                with ExitStack() as held:
                    with plugin_call(trainer, method):
                        given: Any = getattr(trainer, method)
                        kept = version != present
                        weights = held.enter_context(given(policy, version)) if kept else given(policy)
                    check_weights(trainer, method, weights, policy, version)
                    with plugin_call(engine, "load_weights"):
                        await engine.load_weights(weights)
                for _ in range(leases[version]):
                    with plugin_call(engine, "lease"):
                        await check_async(engine, "lease", engine.lease(policy, version))
