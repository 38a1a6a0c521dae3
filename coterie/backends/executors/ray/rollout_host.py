"""The actor that plays and scores jobs; the jobs and such hosts, as the run's process knows them.

A job in which a plugin's method doesn't return is given up.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from coterie.backends.cluster.hosts import HostGone, HostHandle, HostProgram, Record, import_ray
from coterie.backends.cluster.settings import ClusterConfig
from coterie.backends.cluster.wire import Code, answered, compact, sent_error
from coterie.backends.executors.ray.account import AccountClient, AccountHost
from coterie.backends.executors.ray.engine_host import EngineHost
from coterie.backends.executors.ray.host_client import HostEngineClient, Place
from coterie.core.errors import UserError
from coterie.core.protocols import ExecutorContext, RolloutJob, RolloutSide, ScoredRollout
from coterie.core.rollout.context import JobContext
from coterie.core.rollout.side import LocalRolloutSide
from coterie.core.types import Fault, JointAction, Key, Node, Tree
from coterie.watchdog import StuckCall, watch_loop

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


@dataclass(frozen=True, slots=True)
class JobResult:
    """A job's tree and scores, or the exception that it raised, or what it was given up for."""

    number: int
    tree: bytes = b""
    """The packed (Tree, ScoredRollout)."""
    drawn: int = 0
    """Tokens that it got."""
    error: bytes = b""
    stuck: str = ""
    """The method of a plugin in which it was given up, since that didn't return."""


@dataclass(frozen=True, slots=True)
class HostReport:
    """What a host has to tell the run."""

    played: list[JobResult]
    records: list[Record]


def packed(result: tuple[Tree, ScoredRollout]) -> bytes:
    """A tree and its scores in few bytes: the names and numbers of a tree are alike, and compress well."""
    return zlib.compress(compact(result), level=1)


def unpacked(data: bytes) -> tuple[Tree, ScoredRollout]:
    """The tree and the scores of `packed`."""
    result: tuple[Tree, ScoredRollout] = pickle.loads(zlib.decompress(data))
    return result


class RolloutHost(HostProgram):
    """A rollout side in a process of its own. A Ray actor."""

    process = "a rollout host"
    level = logging.WARNING

    def __init__(self) -> None:
        super().__init__()
        self._jobs: dict[int, asyncio.Task[None]] = {}
        self._begun: dict[int, tuple[int, RolloutJob]] = {}
        """Jobs that the run may still count, by number, each with the number of engine hosts that there were
        before the one that counted it when it was sent."""
        self._reported: list[JobResult] = []
        """Those of the last report."""
        self._played: list[JobResult] = []
        self._side: RolloutSide
        self._name = ""
        self._client: HostEngineClient | None = None
        self._blocking: list[StuckCall] = []
        """The calls that blocked the event loop at the watchdog's last look."""

    @answered
    async def open(
        self,
        name: str,
        code: Code,
        make: bytes,
        account: Any,
        variables: Mapping[str, str],
        patience: float,
        silence: float,
    ) -> None:
        """Make the rollout side.

        Args:
            make: the pickled function that makes it.
            account: Ray's handle of the account; None: the run has none.
            variables: environment variables with secrets.
            patience: seconds after which a job is given up, if a plugin's method hasn't returned; 0: never.
            silence: seconds without a report after which the run counts this host as dead.
        """
        self._import(code, variables)
        in_loop: Callable[..., Any] = asyncio.get_running_loop().call_soon_threadsafe
        named, seen = partial(self._named, in_loop), partial(in_loop, self._overdue)
        watch_loop(patience or None, tell=named, seen=seen, blocking=silence / 2)
        asked = None if account is None else HostHandle(import_ray(), account, AccountHost.process)
        self._side = pickle.loads(make)(AccountClient(asked, name))
        self._name = name

    @answered
    async def connect(self, engine: Any, codecs: bytes, batches: bool) -> None:
        """Open the rollout side.

        Args:
            engine: Ray's handle of the engine host.
            codecs: the pickled codecs, by policy.
            batches: whether the engine begins its batches by the count of active rollouts.
        """
        codecs_ = pickle.loads(codecs)
        self._client = HostEngineClient(_engine(engine), self._name, batches=batches, codecs=codecs_)
        self._client.start()
        await self._side.open(self._client)

    @answered
    async def reconnect(self, engine: Any, start: int, counted: Sequence[int]) -> None:
        """Ask another engine host from now on; the one before is gone.

        Args:
            engine: its handle.
            start: how many there were before it.
            counted: numbers of the jobs that it counts as sent to this host.
        """
        counts = {*counted}
        began = Counter(
            job.cohort for number, (when, job) in self._begun.items() if number in counts or when == start
        )
        assert self._client is not None, "`connect` comes first"
        await self._client.reconnect(_engine(engine), began)

    @answered
    async def play(self, start: int, jobs: list[tuple[int, RolloutJob]]) -> None:
        """Begin jobs; `report` has their results.

        Args:
            start: how many engine hosts there were before the one that counts them.
        """
        for number, job in jobs:
            self._begun[number] = start, job
            self._jobs[number] = asyncio.ensure_future(self._play(number, job))

    @answered
    async def cancel(self, number: int) -> int:
        """Cancel a job; returns the tokens that it got."""
        _, job = self._begun.pop(number, (0, None))
        task, drawn = self._jobs.get(number), 0
        if task is not None and job is not None and self._client is not None:
            drawn = self._client.drawn(place_of(job))
            task.cancel()
        return drawn

    @answered
    async def report(self, patience: float) -> HostReport:
        """What there is to tell, once there is something, or after `patience` seconds."""
        for known in self._reported:  # the run has taken it, or would not ask again
            self._begun.pop(known.number, None)
        records = await self._records.next(patience)
        self._reported, self._played = self._played, []
        return HostReport(self._reported, records)

    def _named(self, in_loop: Callable[..., Any], call: StuckCall) -> None:
        """Warn of a call that doesn't return; the run warns of one for which it ends this process."""
        if call.blocks:
            self._blocking = [call]
        else:
            in_loop(logging.getLogger("coterie").warning, "%s", call)

    def _overdue(self, calls: Sequence[StuckCall]) -> None:
        """Give up the jobs of calls that don't return; the event loop runs."""
        self._blocking = []
        begun = {number: job for number, (_, job) in self._begun.items()}
        for call in calls:
            for number in episodes_of(call, begun) if not call.blocks else ():
                task, client = self._jobs.pop(number, None), self._client
                if task is not None and client is not None:
                    drawn = client.drawn(place_of(begun[number]))
                    self._played.append(JobResult(number, drawn=drawn, stuck=str(call)))
                    task.cancel()
        self._records.wake()

    async def blocking(self) -> list[StuckCall]:
        """The calls for which this host doesn't answer. Asked for in an event loop of its own."""
        return self._blocking

    async def _close(self) -> None:
        for task in [*self._jobs.values()]:
            task.cancel()
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)
        if self._client is not None:
            await self._side.close()
            await self._client.close()

    async def _play(self, number: int, job: RolloutJob) -> None:
        client = self._client
        assert client is not None, "`connect` comes before any job"
        client.began(job.cohort)
        place = place_of(job)
        try:
            rollout = await self._side.play(job)
            result: tuple[Tree, ScoredRollout] = rollout.tree, await rollout.scored
            self._played.append(JobResult(number, packed(result), client.drawn(place)))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._played.append(JobResult(number, error=sent_error(error, f"in {self.process}")))
        finally:
            self._jobs.pop(number, None)
            client.ended(place)
            self._records.wake()


def _engine(actor: Any) -> HostHandle:
    return HostHandle(import_ray(), actor, EngineHost.process)
