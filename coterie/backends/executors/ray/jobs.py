"""The jobs and the rollout hosts of a run, as its own process knows them; jobs whose plugins don't return."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from coterie.backends.cluster.hosts import HostGone, HostHandle
from coterie.backends.cluster.settings import ClusterConfig
from coterie.backends.executors.ray.exchange import Place
from coterie.core.errors import UserError
from coterie.core.protocols import ExecutorContext, RolloutJob, ScoredRollout
from coterie.core.rollout.context import JobContext
from coterie.core.rollout.side import LocalRolloutSide
from coterie.core.types import Fault, JointAction, Key, Node, Tree
from coterie.watchdog import StuckCall

log = logging.getLogger("coterie")
WATCH = "watch"
"""The event loop in which a host answers although its first one is blocked."""
LEAST = 5.0
"""Seconds for which a host may be busy, however short `schedule.patience` is."""
HANGS = 2
"""Times that a plugin's method doesn't return in a job; the job is lost then."""
LOSSES = 3
"""Hosts that may be gone while they play a job; it is taken for the cause then."""
OPENED = 300.0
"""Least seconds that a host has to import and open its plugins."""
LOST = "cluster/episodes_lost"


@dataclass(slots=True, eq=False)
class HostedJob:
    """A job that is not done."""

    number: int
    job: RolloutJob
    result: asyncio.Future[tuple[Tree, ScoredRollout]]
    step: int
    """The step in play that it belongs to; 0: none."""
    host: RolloutHandle | None = None
    losses: int = 0
    """Hosts that were gone while they played it, for whatever reason."""
    hangs: int = 0
    """Times that a plugin's method did not return in it."""

    @property
    def place(self) -> Place:
        return place_of(self.job)


def place_of(job: RolloutJob) -> Place:
    """A job, as the engine host knows it."""
    return job.cohort, job.task.id, job.epoch, job.chain


class RolloutHandle(HostHandle):
    """A rollout host."""

    def __init__(self, ray: Any, actor: Any, name: str) -> None:
        super().__init__(ray, actor, name)
        self.jobs: dict[int, HostedJob] = {}
        self.start = -1
        """The number of the engine host that it asks."""

    async def blocking(self, seconds: float) -> list[StuckCall]:
        """The calls for which it doesn't answer; none where its process is gone, or stopped.

        Args:
            seconds: to wait for it.
        """
        with suppress(Exception):  # whatever it is, the host is replaced
            async with asyncio.timeout(seconds):
                calls: list[StuckCall] = await self.actor.blocking.options(concurrency_group=WATCH).remote()
                return calls
        return []

    async def opening(self, settings: ClusterConfig, silence: float, method: str, *arguments: Any) -> Any:
        """Call a method that imports and opens plugins, in which the host may be busy for long.

        Args:
            silence: seconds without a report after which it counts as dead.

        Raises:
            HostGone: its process is gone, or not done after `OPENED` seconds.
        """
        try:
            async with asyncio.timeout(max(OPENED, settings.timeout)):
                return await self.call(method, *arguments)
        except TimeoutError as error:
            what = f"its plugins were not opened within {OPENED:g} s"
            raise HostGone(reasons(await self.blocking(silence / 4), what)) from error


def episodes_of(call: StuckCall, jobs: Mapping[int, RolloutJob]) -> list[int]:
    """Numbers of the jobs whose episode a call is of."""
    return [number for number, job in jobs.items() if call.episode.startswith(_root(job).text())]


def _root(job: RolloutJob) -> Key:
    return Key(job.task.id, job.epoch, job.chain)


def lose(job: HostedJob, ctx: ExecutorContext, why: str) -> None:
    """Let all scores of a job be missing: a plugin's method doesn't return in it."""
    log.warning("the episode of task %s is lost: %s", job.job.task.id, why)
    if isinstance(ctx.side, LocalRolloutSide):
        job.result.set_result(_lost(ctx.side.context(job.job, ctx.engine), job.job, why))
    else:  # one that writes no scores
        fix = "bound what the method waits for, or raise schedule.patience"
        job.result.set_exception(UserError(f"task '{job.job.task.id}' can't be played", why=why, fix=fix))


def end_causes(
    jobs: Sequence[HostedJob], calls: Sequence[StuckCall], ctx: ExecutorContext, why: str
) -> list[Place]:
    """End those of a lost host's jobs that are taken for the cause; the places of those that hang."""
    known = {job.number: job.job for job in jobs}
    stuck, hanging = {number for call in calls for number in episodes_of(call, known)}, []
    for job in jobs:
        job.hangs += job.number in stuck
        job.losses += not stuck  # else the others of the host were not the cause
        if job.hangs == HANGS:
            lose(job, ctx, why)
            hanging.append(job.place)
        elif job.losses == LOSSES:
            what = f"{LOSSES} rollout hosts were lost while they played task '{job.job.task.id}': {why}"
            fix = "see whether a plugin ends the process, or blocks it for longer than cluster.timeout"
            job.result.set_exception(UserError(what, path="executor", fix=fix))
    return hanging


def _lost(context: JobContext, job: RolloutJob, why: str) -> tuple[Tree, ScoredRollout]:
    """A tree whose first joint action is lost."""
    key, fault = _root(job), Fault(kind="system", reason=why)
    joint = JointAction(branches={}, state_digest="", truncated=True, fault=fault)
    root = Node(key=key, turn=0, stage=0, decisions={}, joints=(joint,), expanded=(0,), rule="only")
    context.mark_missing(key.of_joint(0), why)
    tree = Tree(task=job.task, chain=job.chain, epoch=job.epoch, root=root)
    return tree, ScoredRollout(context.scores, {LOST: 1.0})


def reasons(calls: Iterable[StuckCall], otherwise: str) -> str:
    """Why a host doesn't answer, in words."""
    return "; ".join(map(str, calls)) or otherwise
