"""The engine as the run sees it: its methods call the engine host."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.backends.cluster.connection import Connection
from coterie.backends.cluster.hosts import Actors, HostGone, HostHandle
from coterie.backends.cluster.transfer import NotAtHand
from coterie.backends.cluster.wire import own_code
from coterie.backends.executors.ray.account import CLOSE_SECONDS
from coterie.backends.executors.ray.direct_weights import DirectWeights
from coterie.backends.executors.ray.engine_host import EngineHost
from coterie.backends.executors.ray.shipping import Elsewhere, Sender
from coterie.backends.executors.ray.weight_files import WeightFiles, opened
from coterie.backends.models import device_memory
from coterie.backends.models.versions import Versions
from coterie.core.concurrency.active_rollouts import ActiveRollouts
from coterie.core.errors import UserError
from coterie.core.protocols import Codec, Engine, EngineContext
from coterie.core.rollout.engine_client import IdleTime
from coterie.core.types import Call, Request, Weights

log = logging.getLogger("coterie")
IDLE_SECONDS = 5.0
"""Longest wait for a number that only a metric needs."""


class HostedEngine:
    """An `Engine` whose work is done by an engine host.

    An engine host that dies, or does not answer for `cluster.timeout` seconds, is replaced: another one gets
    the weights that it had, and then what `replaced` tells it.

    Args:
        make: makes the engine, in any process. Picklable.
        here: whether it must be on the node of the run's process.
        variables: names of the secret environment variables that it gets; None: all.
    """

    def __init__(
        self,
        make: Callable[[], Engine],
        connection: Connection,
        *,
        here: bool = False,
        variables: Collection[str] | None = (),
    ) -> None:
        self._make, self._connection, self._here, self._variables = make, connection, here, variables
        self.folder: Path | None = None
        """The run's."""
        self.sender = Sender()
        self.kept: Versions[Any] = Versions(self._drop)
        """What another engine host needs to have the weights of this one, as it is stored."""
        self._introductions: list[Any] = []
        """What introduced modules and tokenizers (`SentWeights.introduces`), of whatever version."""
        self._files: WeightFiles | None = None
        """None: weights go through Ray's object store."""
        self._direct: DirectWeights | None = None
        self._codecs: dict[str, Codec] = {}
        self._payload = b""
        self._watching: asyncio.Task[None] | None = None
        self._replacing: asyncio.Task[None] | None = None
        self.policies: tuple[str, ...] = ()
        self._host: HostHandle
        self.start = 0
        """How many engine hosts there were before this one."""
        self.replaced: Callable[[str, float], None] = lambda why, seconds: None
        """Called once there is another engine host, with the reason and the seconds that it took. What this
        function tells the engine host comes before all other calls."""
        self.failed: Callable[[BaseException], None] = lambda error: None
        """Called with the error that ends the run, since there can't be another engine host."""

    @property
    def actor(self) -> Any:
        """Ray's handle of the engine host, for rollout hosts."""
        return self._host.actor

    @property
    def pid(self) -> int:
        """Of the engine host."""
        return self._host.pid

    def use_run_folder(self, folder: Path) -> None:
        """Take the run's folder, for the engine and the account; called before `open`."""
        self.folder = folder

    async def open(self, ctx: EngineContext) -> None:
        """Connect to the cluster, and open the engine there.

        Raises:
            UserError: the cluster can't be reached, or has too little room.
        """
        self._connection.open()
        ray = self._connection.ray
        transfer = self._connection.transfer()
        log.info("%s", transfer.sentence)
        self._direct = DirectWeights(transfer, self._connection)
        self._files = await asyncio.to_thread(opened, self._connection, self.folder)
        self.policies = tuple(ctx.policies)
        bare = replace(ctx, active_rollouts=ActiveRollouts())
        actors = Actors(self._connection.settings, self._connection.rooms())
        self._payload = ray.cloudpickle.dumps((self._make, bare, actors))
        self._host = self._new()
        try:
            await self._open(self._host)
        except HostGone as gone:
            fix = "see what ends it (memory?), and start the run again"
            what = "the engine's process has ended while the engine was opened"
            raise UserError(what, path="engine", why=str(gone), fix=fix) from gone
        self._watching = asyncio.ensure_future(self._watch())
        if any(room.shared for room in self._connection.rooms().values()):
            device_memory.lend(self)  # while the trainer computes

    async def sleep(self) -> None:
        """Free the device memory of replicas that have the trainer's GPUs."""
        await self.call("sleep")

    async def generate(self, request: Request) -> Call:
        """Refuse.

        Raises:
            RuntimeError: rollout hosts ask the engine host themselves.
        """
        raise RuntimeError("the run's process asks for no tokens with executor 'ray'")

    async def load_weights(self, weights: Weights) -> None:
        assert self._direct is not None, "the engine was opened"
        ways = await self._direct.ways(weights)
        stored: Any
        if isinstance(weights.module, Elsewhere):  # they don't pass through this process
            stored, introduces = await weights.module.send(ways)
            await device_memory.make_room()
        else:
            if ways is None:
                sent = await asyncio.to_thread(self.sender.send, weights)
            else:
                sent = self.sender.outline(weights, ways)
            introduces = sent.introduces
            await device_memory.make_room()  # it is sent: replicas may start or wake on the trainer's GPUs
            stored = sent
            if self._files is not None:
                stored = await asyncio.to_thread(self._files.store, sent)
            if stored is sent:  # in no file
                stored = self._connection.ray.put(sent)
        self._direct.keep(weights, ways)
        await self._up()
        if introduces:
            self._introductions.append(stored)
        self.kept.put(weights.policy, weights.version, stored)
        await self.notify("load_weights", stored)
        self._codecs.pop(weights.policy, None)  # its context may be known only now

    def _drop(self, policy: str, stored: Any) -> None:
        if self._files is not None:
            self._files.drop(stored)

    async def before_jobs(self) -> None:
        """Let the trainer leave GPUs on which replicas may wake; takes a turn of the loop at least."""
        await device_memory.make_room()
        await asyncio.sleep(0)

    async def lease(self, policy: str, version: int) -> None:
        await self._up()
        self.kept.lease(policy, version)
        await self.notify("call", "lease", policy, version)

    async def release(self, policy: str, version: int) -> None:
        await self._up()
        self.kept.release(policy, version)
        await self.notify("call", "release", policy, version)

    def codec(self, policy: str) -> Codec:
        if policy not in self._codecs:
            asked, seconds = self._host.sent("codec", policy), self._connection.settings.timeout
            try:
                self._codecs[policy] = self._host.answer_now(asked, seconds)
            except HostGone as gone:
                fix = "`coterie run --resume RUN` goes on from the last checkpoint"
                what = "the engine's process is gone"
                raise UserError(what, path="engine", why=str(gone), fix=fix) from gone
        return self._codecs[policy]

    async def close(self) -> None:
        """Close the engine, end its process, and disconnect."""
        device_memory.withdraw(self)
        tasks = [task for task in (self._watching, self._replacing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            if self._watching is not None:  # it was opened
                await self._host.close(CLOSE_SECONDS if self._here else self._connection.settings.timeout)
        finally:
            if self._direct is not None:
                await self._direct.close()
            if self._files is not None:
                self._files.close()
            self._connection.close()

    # ------------------------------------------------------------------------------------- the engine host

    async def call(self, method: str) -> Any:
        """What a method of the engine host returns; it may be called twice.

        Raises:
            UserError: its process is gone, and there can't be another one.
            Exception: what the method raised.
        """
        while True:
            start = self.start
            try:
                return await self._host.call(method)
            except HostGone as gone:
                await self.another(start, str(gone))

    def notify(self, method: str, *arguments: Any) -> Awaitable[None]:
        """Call a method of the engine host before this function returns.

        The result waits until the method has returned, or until another engine host is there, which knows as
        much by what `_fill` and `replaced` tell it.
        """
        reference = self._host.sent(method, *arguments)
        return asyncio.ensure_future(self._notified(self._host, reference, self.start))

    async def _notified(self, host: HostHandle, reference: Any, start: int) -> None:
        try:
            await host.answer(reference)
        except HostGone as gone:
            await self.another(start, str(gone))

    def idle_seconds(self) -> float:
        """Seconds without a request since the last call of this method; 0 where nobody knows."""
        try:
            return float(self._host.answer_now(self._host.sent("idle_seconds"), IDLE_SECONDS))
        except HostGone:
            return 0.0

    # ----------------------------------------------------------------------------------------- replacement

    def _new(self) -> HostHandle:
        cpus, gpus = self._connection.settings.engine_cpus, self._connection.settings.engine_gpus
        actor = self._connection.actor(EngineHost, cpus=cpus, gpus=gpus, name="engine", here=self._here)
        return HostHandle(self._connection.ray, actor, EngineHost.process)

    async def _open(self, host: HostHandle) -> None:
        """Open the engine in a process.

        Raises:
            HostGone: the process has ended.
        """
        await host.placed(self._connection)
        await host.begin()
        secrets = self._connection.secrets(self._variables)
        await host.call("open", own_code(), self._payload, self.folder, secrets)
        if self._direct is not None:
            self._direct.serve(host)

    async def _watch(self) -> None:
        """Log what is logged there, and replace an engine host as soon as it is gone."""
        timeout = self._connection.settings.timeout
        try:
            while True:
                start = self.start
                await self.another(start, await self._host.watch(timeout / 4, timeout))
        except Exception as error:
            self.failed(error)

    async def _up(self) -> None:
        """Wait while the engine host is replaced: what is noted meanwhile would not reach the other one."""
        if self._replacing is not None:
            await asyncio.shield(self._replacing)

    async def another(self, start: int, why: str) -> None:
        """Wait for an engine host that comes after the one with this number.

        Raises:
            UserError: there can't be one.
        """
        if self.start > start:
            return
        if self._replacing is None or (self._replacing.done() and not self._replacing.exception()):
            self._replacing = asyncio.ensure_future(self._replace(why))
        await asyncio.shield(self._replacing)

    async def _replace(self, why: str) -> None:
        began = time.perf_counter()
        host = self._host
        while True:
            self._connection.lose(host.actor, "the engine's process", why)
            host = self._new()
            try:
                await self._fill(host)
                break
            except HostGone as gone:
                why = str(gone)
        seconds = time.perf_counter() - began
        self._host, self.start = host, self.start + 1
        log.warning(
            "the engine's process is gone (%s); another one has its weights after %.1f s", why, seconds
        )
        self.replaced(why, seconds)

    async def _fill(self, host: HostHandle) -> None:
        """Open the engine in a new process, with all weights that it had."""
        await self._open(host)
        for stored in self._introductions:
            await host.call("introduce", stored)
        for policy, version, stored, leases in self.kept.items():
            try:
                await host.call("load_weights", stored)
            except NotAtHand as fault:  # the next version is about to come
                log.warning("the new process of the engine has no weights of '%s' yet: %s", policy, fault)
                continue
            for _ in range(leases):
                await host.call("call", "lease", policy, version)


class HostedIdleTime(IdleTime):
    """How long the engine of an engine host has had no request."""

    def __init__(self, engine: HostedEngine) -> None:
        super().__init__()
        self._hosted = engine

    def take(self) -> float:
        return self._hosted.idle_seconds()
