"""Executor `ray`: jobs are played by rollout hosts, processes of a Ray cluster."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from coterie.backends.cluster.connection import Connection
from coterie.backends.cluster.hosts import HostGone, Record, end, log_again
from coterie.backends.cluster.settings import ClusterConfig
from coterie.backends.cluster.wire import own_code, received_error
from coterie.backends.executors.ray.account import RunAccount
from coterie.backends.executors.ray.hosted_engine import HostedEngine, HostedIdleTime
from coterie.backends.executors.ray.hosted_trainers import TrainerParts, check_apart, hosted_trainers
from coterie.backends.executors.ray.rollout_host import (
    HANGS,
    LEAST,
    WATCH,
    HostedJob,
    HostReport,
    RolloutHandle,
    RolloutHost,
    end_causes,
    lose,
    reasons,
    unpacked,
)
from coterie.core.errors import UserError
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.protocols import Engine, ExecutorContext, Rollout, RolloutJob, ScoredRollout, Trainer
from coterie.core.rollout.engine_client import STEP, LocalEngineClient
from coterie.discovery.members import UsesRunFolder
from coterie.discovery.validation import validate

log = logging.getLogger("coterie")


class RayExecutor(Plugin):
    """Plays jobs on rollout hosts, and moves the engine into a process of its own.

    The table `cluster` says where and how many. A host that dies or hangs is replaced, and its jobs are
    played again from their keys. The engine's process keeps the calls of unfinished jobs: they get the same.
    """

    class Config(PluginConfig):
        pass

    Cluster = ClusterConfig

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        table = build.run.cluster if build is not None else None
        self.settings: ClusterConfig = validate(ClusterConfig, table or {}, "cluster")
        self._connection = Connection(self.settings, build.run if build is not None else None)
        self._patience: float = (build.run.schedule.patience or 0.0) if build is not None else 0.0
        self._silence = min(self.settings.timeout, max(self._patience or float("inf"), LEAST))
        """Seconds without a report after which a host counts as dead."""
        self._variables = set[str]()
        """Secret environment variables that rollout hosts get."""
        self.engine: HostedEngine
        self.account: RunAccount
        self.hosts: list[RolloutHandle] = []
        self._leaving: list[RolloutHandle] = []
        """Those that are gone, until others have their jobs."""
        self._queue: list[HostedJob] = []
        self._jobs: dict[int, HostedJob] = {}
        """Those that are not done, by number."""
        self._numbers = self._made = 0
        self._drawn = Counter[int]()
        self._warnings: set[Record] = set()
        self._sending: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._lost: BaseException | None = None
        self._metrics: Any = Counter()
        """Of the cluster since the last training job; the next one's scores carry them to the step's row."""
        self._side = b""
        """The pickled function that makes a rollout side."""

    @property
    def cluster(self) -> Connection:
        """Where a trainer's other ranks are; the engine's close disconnects."""
        return self._connection

    def host_engine(self, engine: Engine, make: Callable[[], Engine], shared: Any) -> LocalEngineClient:
        """The client of an engine that `make` makes in a process of the cluster.

        Args:
            shared: what the run has once, as `compose.account.Shared`.
        """
        self._connection.named, named = shared.variables.every, shared.variables
        self.account = RunAccount(shared, self._connection)
        self._variables = {*named.sides, *self.settings.variables}
        # An engine that stores files in the run's folder calls a server: it has a budget, a cache and a key.
        here = isinstance(engine, UsesRunFolder)
        variables = None if here else {*named.engine, *self.settings.variables}
        self.engine = HostedEngine(make, self._connection, here=here, variables=variables)
        self.engine.replaced, self.engine.failed = self._reconnect, self._fail
        client = LocalEngineClient(self.engine, idle_time=HostedIdleTime(self.engine))
        self._drawn = client.drawn
        return client

    def host_trainers(self, trainer: Trainer, make: Callable[[], TrainerParts]) -> Trainer:
        """The trainer itself; with `updates: at_once` what lets each set of weights have one of its own.

        Args:
            make: makes the trainer, its loss and its chat format, in any process. Picklable.
        """
        if self.settings.updates == "in_turn":
            return trainer
        check_apart(trainer)
        hosted = hosted_trainers(trainer, make, self._connection)
        hosted.failed = self._fail
        return hosted

    async def open(self, ctx: ExecutorContext) -> None:
        """Start the rollout hosts.

        Raises:
            ConfigError: a node has other versions of the run's packages or plugin files.
            UserError: the rollout side can't be made there.
        """
        self._side, self._ctx = self.account.pickled_side(), ctx
        self.account.start()
        account, *made = await asyncio.gather(
            self.account.open(self.engine.folder, self._fail),
            *(self.new_host() for _ in range(self.settings.workers)),
            return_exceptions=True,
        )
        if isinstance(account, BaseException):
            raise account
        errors = {str(each): each for each in made if isinstance(each, BaseException)}
        if len(errors) > 1 and all(isinstance(error, UserError) for error in errors.values()):
            what = f"{len(errors)} rollout hosts can't be opened"
            raise UserError(what, path="cluster", why="\n".join(errors))
        if errors:
            raise next(iter(errors.values()))
        self.hosts = [host for host in made if isinstance(host, RolloutHandle)]

    async def play(self, job: RolloutJob) -> Rollout:
        """Play a job on the host that has the fewest."""
        if self._lost is not None:
            raise self._lost
        loop = asyncio.get_running_loop()
        waiting = HostedJob(self._numbers, job, loop.create_future(), STEP.get())
        self._numbers += 1
        self._queue.append(waiting)
        self._jobs[waiting.number] = waiting
        self.send_soon()
        try:
            tree, scored = await waiting.result
        except asyncio.CancelledError:
            await self._cancelled(waiting)
            raise
        finally:
            self._jobs.pop(waiting.number, None)
        known: asyncio.Future[ScoredRollout] = loop.create_future()
        known.set_result(scored)
        return Rollout(tree, known)

    def processes(self) -> dict[str, int]:
        """The nodes of the cluster, the rollout hosts, and their jobs, for the display of progress."""
        hosts = [*self.hosts]
        if not hosts or not self._jobs or not self._connection.ray.is_initialized():
            return {}
        in_play = sum(len(host.jobs) for host in hosts)
        nodes = sum(node["Alive"] for node in self._connection.ray.nodes())
        return {"nodes": nodes, "hosts": len(hosts), "in play": in_play, "queued": len(self._queue)}

    async def close(self) -> None:
        """End the rollout hosts; the engine's close disconnects."""
        tasks = [task for task in (self._sending, *self._tasks) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await end(self._connection, self.hosts, min(10.0, self.settings.timeout), self._log)
        self.hosts.clear()
        await self.account.close()

    # ---------------------------------------------------------------------------------------------- sending

    def send_soon(self) -> None:
        """Give the jobs that wait to hosts, once what goes on has had its turn."""
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send())
            self._sending.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _send(self) -> None:
        """Give the jobs that wait to hosts with room, all that one gets in one message."""
        new = [host for host in self.hosts if host.start < 0]
        await asyncio.gather(*(self.begin(host) for host in new))
        for host in new:
            host.watching = asyncio.ensure_future(self._watch(host))
        await self.engine.before_jobs()  # all jobs of a step are asked for in one turn of the loop
        while self._queue and self.hosts:
            shares: dict[RolloutHandle, list[HostedJob]] = {}
            while self._queue:
                host = min(self.hosts, key=lambda host: len(host.jobs))
                if len(host.jobs) >= self.settings.max_live:
                    break
                job = self._queue.pop(0)
                job.host, host.jobs[job.number] = host, job
                shares.setdefault(host, []).append(job)
            if not shares:
                return
            counted = [self._counted(host, jobs) for host, jobs in shares.items()]
            await asyncio.gather(*counted)  # first of all: no batch may begin between
            for host, jobs in shares.items():
                await self.hand(host, jobs)

    def _counted(self, host: RolloutHandle, jobs: Iterable[HostedJob]) -> Awaitable[None]:
        """Let the engine host count jobs that are about to be sent to a host."""
        cohorts = Counter(job.job.cohort for job in jobs)
        return self.engine.notify("send", host.name, dict(cohorts))

    async def hand(self, host: RolloutHandle, jobs: list[HostedJob]) -> None:
        with suppress(HostGone):  # `_watch` notices too, and gives its jobs to another
            await host.call("play", host.start, [(job.number, job.job) for job in jobs])

    async def _cancelled(self, job: HostedJob) -> None:
        if job in self._queue:
            self._queue.remove(job)
        elif job.host is not None and job.host.jobs.pop(job.number, None) is not None:
            with suppress(HostGone, UserError):
                self._drawn[job.step] += await job.host.call("cancel", job.number)
                await self.engine.notify("forget", [job.place])

    # ------------------------------------------------------------------------------------------------ hosts

    async def new_host(self) -> RolloutHandle:
        name = f"rollout host {self._made}"
        self._made += 1
        cpus, groups = self.settings.worker_cpus, {WATCH: 1}
        actor = self._connection.actor(RolloutHost, cpus=cpus, name=name, groups=groups)
        host = RolloutHandle(self._connection.ray, actor, name)
        secrets, account = self._connection.secrets(self._variables), self.account.actor
        opening = name, own_code(), self._side, account, secrets, self._patience, self._silence
        try:
            await host.placed(self._connection)
            await host.begin()
            await host.opening(self.settings, self._silence, "open", *opening)
        except HostGone as error:
            fix = "see whether a plugin ends the process as it is imported, and start the run again"
            what = f"{name} has ended while it was opened"
            raise UserError(what, path="executor", why=str(error), fix=fix) from error
        return host

    async def begin(self, host: RolloutHandle) -> None:
        """Give a host the codecs, known once the engine has weights."""
        batches = await self.engine.call("batches")
        codecs = {policy: self.engine.codec(policy) for policy in self.engine.policies}
        sent = self._connection.ray.cloudpickle.dumps(codecs)
        host.start, actor = self.engine.start, self.engine.actor
        with suppress(HostGone):  # `_watch` notices too
            await host.opening(self.settings, self._silence, "connect", actor, sent, batches)

    def _reconnect(self, why: str, seconds: float) -> None:
        """Let another engine host count the jobs of all hosts, and the hosts ask it."""
        self._metrics.update({"cluster/engines_lost": 1, "cluster/replacing": seconds})
        for host in self._leaving:  # their jobs count until another host has them
            self._beside(self._counted(host, host.jobs.values()))
        for host in self.hosts:
            if host.start >= 0:
                counted = self._counted(host, host.jobs.values())
                self._beside(self._told(host, counted, [*host.jobs]))
                host.start = self.engine.start

    async def _told(self, host: RolloutHandle, counted: Awaitable[None], numbers: list[int]) -> None:
        actor, start = self.engine.actor, self.engine.start
        await counted
        with suppress(HostGone):  # `_watch` notices too
            await host.call("reconnect", actor, start, numbers)

    def _beside(self, work: Coroutine[Any, Any, None] | Awaitable[None]) -> None:
        """Do something beside the play; its error ends all that is played."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._sent)

    async def _watch(self, host: RolloutHandle) -> None:
        """Take the reports of a host until it is gone."""
        try:
            why = await host.watch(self._silence / 4, self._silence, "report", partial(self._take, host))
            self._beside(self._replace(host, why))
        except Exception as error:
            self._fail(error)

    def _log(self, records: Sequence[Record]) -> None:
        """Log what hosts have warned of, once each."""
        new = dict.fromkeys(record for record in records if record not in self._warnings)
        self._warnings.update(new)
        log_again([*new])

    def _take(self, host: RolloutHandle, report: HostReport) -> None:
        self._log(report.records)
        done = []
        for played in report.played:
            job = host.jobs.pop(played.number, None)
            if job is None or (played.stuck and self._plays_again(job)):
                continue
            done.append(job.place)
            self._drawn[job.step] += played.drawn
            if job.result.done():
                continue
            if played.stuck:
                lose(job, self._ctx, played.stuck)
            elif played.error:
                job.result.set_exception(received_error(played.error))
            else:
                tree, scored = unpacked(played.tree)
                if self._metrics and not job.job.evaluation:
                    metrics = Counter(self._metrics)
                    metrics.update(scored.metrics)
                    scored, self._metrics = replace(scored, metrics=metrics), Counter()
                job.result.set_result((tree, scored))
        if done:
            self._beside(self.engine.notify("forget", done))
        if self._queue:
            self.send_soon()

    def _plays_again(self, job: HostedJob) -> bool:
        """Whether a job in which a plugin's method didn't return is played again, under another number."""
        job.hangs += 1
        if job.hangs >= HANGS or job.result.done():
            return False
        self._jobs.pop(job.number, None)
        job.number, job.host, self._numbers = self._numbers, None, self._numbers + 1
        self._jobs[job.number] = job
        self._queue.insert(0, job)
        self._metrics["cluster/jobs_again"] += 1
        return True

    async def _replace(self, host: RolloutHandle, why: str) -> None:
        """Start another host in place of one that is gone, and play its jobs there."""
        began = time.perf_counter()
        self.hosts.remove(host)
        self._leaving.append(host)
        why = reasons(calls := await host.blocking(self._silence / 4), why)
        new = await self._another_host(host, why)
        await self.begin(new)
        jobs = [job for job in host.jobs.values() if not job.result.done()]
        if hanging := end_causes(jobs, calls, self._ctx, why):
            self._beside(self.engine.notify("forget", hanging))
        jobs = [job for job in jobs if not job.result.done()]
        for job in jobs:
            job.host, new.jobs[job.number] = new, job
        self.hosts.append(new)
        self._leaving.remove(host)
        counted = self._counted(new, jobs)  # before the old one's are dropped: no batch may begin between
        dropped = self.engine.notify("drop", host.name)
        if new.start != self.engine.start:  # the engine host was replaced meanwhile
            self._beside(self._told(new, counted, [*new.jobs]))
            new.start = self.engine.start
        else:
            await counted
        await dropped
        await self.account.drop(host.name)
        new.watching = asyncio.ensure_future(self._watch(new))  # not before: it may be gone already, too
        await self.hand(new, jobs)
        seconds = time.perf_counter() - began
        self._metrics.update({"cluster/hosts_lost": 1, "cluster/jobs_again": len(jobs)})
        self._metrics["cluster/replacing"] += seconds
        log.warning(
            "%s is gone (%s); another one plays its %d jobs again, after %.1f s",
            *(host.name, why, len(jobs), seconds),
        )
        self.send_soon()

    async def _another_host(self, gone: RolloutHandle, why: str) -> RolloutHandle:
        """A host in place of one that is gone.

        Ray may place it on a node that has died, as long as it doesn't know that; then it is lost, too.
        """
        self._connection.lose(gone.actor, gone.name, why)
        while True:
            try:
                return await self.new_host()
            except UserError as error:
                if not isinstance(error.__cause__, HostGone):
                    raise
                self._connection.lose(None, "a rollout host", str(error.__cause__))

    def _fail(self, error: BaseException) -> None:
        """End all that is played with an error."""
        self._lost = error
        self._queue.clear()
        for job in [*self._jobs.values()]:
            if not job.result.done():
                job.result.set_exception(error)
