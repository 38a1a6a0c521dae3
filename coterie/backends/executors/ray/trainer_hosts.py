"""The trainer hosts of a run, as its own process starts, calls, watches and ends them."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from coterie.backends.cluster.compact import compact
from coterie.backends.cluster.connection import Connection
from coterie.backends.cluster.direct import Order
from coterie.backends.cluster.processes import trainer_name
from coterie.backends.cluster.records import log_again
from coterie.backends.cluster.wire import unwrapped
from coterie.backends.executors.ray.trainer_host import TrainerHost
from coterie.core.errors import UserError

T = TypeVar("T")
CLOSE_SECONDS = 10.0
"""Most seconds for which trainers may close; then their processes are killed."""
LOOK = 0.5
"""Most seconds between two looks at what a call waits for."""


@dataclass(eq=False)
class Host:
    """A trainer host."""

    name: str
    """Of its set of weights."""
    policies: tuple[str, ...]
    handle: Any
    versions: dict[str, int] = field(default_factory=dict)
    """Of its policies' weights."""
    pid: int = 0
    watching: asyncio.Task[None] | None = None

    @property
    def process(self) -> str:
        """This process, in words."""
        return f"the trainer of {', '.join(self.policies)}"


class TrainerHosts:
    """Starts, calls and ends the trainer hosts.

    One that dies, or gives no answer for `cluster.timeout` seconds, ends the run: what it had is in no other
    process.

    Args:
        failed: called with the error, as soon as one is lost.
    """

    def __init__(self, connection: Connection, failed: Callable[[BaseException], None]) -> None:
        self._connection, self._failed = connection, failed
        self.hosts: list[Host] = []
        self._loss: BaseException | None = None
        self._lost = asyncio.Event()

    async def start(self, sets: Mapping[str, Sequence[str]]) -> None:
        """Start a host for each set of weights.

        Raises:
            UserError: the cluster has no room for one, or its process ends.
        """
        settings = self._connection.settings
        for name, policies in sets.items():
            handle = self._connection.actor(TrainerHost, cpus=settings.rank_cpus, name=trainer_name(name))
            self.hosts.append(Host(name, tuple(policies), handle))
        await asyncio.gather(*map(self._begin, self.hosts))

    async def _begin(self, host: Host) -> None:
        try:
            await self._connection.placed(host.handle, trainer_name(host.name))
            host.pid = unwrapped(await host.handle.begin.remote(host.process))
        except self._connection.ray.exceptions.RayError as error:
            raise _gone(host, _reason(error)) from error
        host.watching = asyncio.ensure_future(self._watch(host))

    def of(self, policy: str) -> Host:
        """The host of a policy."""
        return next(host for host in self.hosts if policy in host.policies)

    async def close(self) -> None:
        """Close the trainers, and end their processes."""
        watching = [host.watching for host in self.hosts if host.watching is not None]
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        closing = [asyncio.ensure_future(self._closed(host)) for host in self.hosts if host.watching]
        if closing:
            await asyncio.wait(closing, timeout=min(CLOSE_SECONDS, self._connection.settings.timeout))
        for task in closing:
            task.cancel()
        await asyncio.gather(*closing, return_exceptions=True)
        for host in self.hosts:
            self._connection.remove(host.handle)
        self.hosts.clear()

    async def _closed(self, host: Host) -> None:
        with suppress(self._connection.ray.exceptions.RayError):
            log_again(unwrapped(await host.handle.close.remote()))

    # -------------------------------------------------------------------------------------------------- calls

    async def all(self, calls: Sequence[Awaitable[T]]) -> list[T]:
        """The results of several calls, which run at once.

        Raises:
            UserError: a host is lost.
            Exception: what the first of the calls that failed has raised, once all are done.
        """
        tasks = [asyncio.ensure_future(call) for call in calls]
        lost = asyncio.ensure_future(self._lost.wait())
        waiting: set[asyncio.Future[Any]] = {*tasks}
        try:
            while waiting and not lost.done():
                _, pending = await asyncio.wait({*waiting, lost}, return_when=asyncio.FIRST_COMPLETED)
                waiting = pending - {lost}
        finally:
            lost.cancel()
            for task in tasks:
                task.cancel()
                task.add_done_callback(_retrieved)
        if waiting:
            self.check()
        return [task.result() for task in tasks]

    async def raw(self, host: Host, method: str, *arguments: Any) -> Any:
        """What a method of a host returns."""
        return await self.awaited(host, getattr(host.handle, method).remote(*arguments))

    async def awaited(self, host: Host, reference: Any) -> Any:
        """The answer of a host to a call.

        Raises:
            UserError: the host is lost.
            Exception: what the method raised.
        """
        try:
            return unwrapped(await reference)
        except self._connection.ray.exceptions.RayError as error:
            raise self._lose(host, _reason(error)) from error

    async def trainer(self, host: Host, method: str, *arguments: Any) -> Any:
        """What a method of a host's trainer returns."""
        return self.taken(host, await self.raw(host, "call", method, compact(arguments)))

    async def fulfil(self, host: Host, order: Order) -> None:
        """Let a host send weights to a replica; a caller that is cancelled drops the order there."""
        try:
            await self.all([self.raw(host, "fulfil", order)])
        except asyncio.CancelledError:
            host.handle.drop.remote(order.number)
            raise

    def trainer_now(self, host: Host, method: str, *arguments: Any) -> Any:
        """`trainer`, for a caller that can't await; the event loop stands still meanwhile."""
        return self.taken(host, self.now({host: ("call", method, compact(arguments))})[host])

    @staticmethod
    def taken(host: Host, answer: tuple[bytes, dict[str, int]]) -> Any:
        """What a method of a trainer returned, of the answer of `TrainerHost.call`."""
        data, host.versions = answer
        return pickle.loads(data)

    def now(self, calls: Mapping[Host, tuple[Any, ...]]) -> dict[Host, Any]:
        """What methods of hosts return, which run at once; the event loop stands still meanwhile.

        Args:
            calls: by host: the name of the method, and its arguments.

        Raises:
            UserError: a host is lost.
            Exception: what the first method that failed has raised.
        """
        self.check()
        ray, timeout = self._connection.ray, self._connection.settings.timeout
        answers = {
            host: getattr(host.handle, method).remote(*arguments)
            for host, (method, *arguments) in calls.items()
        }
        alive = {host: (host.handle.alive.remote(), time.monotonic()) for host in calls}
        while ray.wait([*answers.values()], num_returns=len(answers), timeout=min(LOOK, timeout / 4))[1]:
            for host, (asked, since) in alive.items():
                if ray.wait([asked], timeout=0)[0]:
                    alive[host] = host.handle.alive.remote(), time.monotonic()
                elif time.monotonic() - since > timeout:
                    raise self._lose(host, f"no answer for {timeout:g} s")
        results = {}
        for host, answer in answers.items():
            try:
                results[host] = unwrapped(ray.get(answer))
            except ray.exceptions.RayError as error:
                raise self._lose(host, _reason(error)) from error
        return results

    # -------------------------------------------------------------------------------------------- lost hosts

    def check(self) -> None:
        """Raise what has become of a lost host."""
        if self._loss is not None:
            raise self._loss

    async def _watch(self, host: Host) -> None:
        """Log what is logged there, until the host is lost."""
        ray, timeout = self._connection.ray, self._connection.settings.timeout
        try:
            while True:
                reference = host.handle.records.remote(timeout / 4)
                try:
                    async with asyncio.timeout(timeout):
                        records = await reference
                except TimeoutError:
                    # This process may have stood still itself, for instance to write a checkpoint.
                    if not ray.wait([reference], timeout=0)[0]:
                        self._failed(self._lose(host, f"no answer for {timeout:g} s"))
                        return
                    records = await reference
                log_again(unwrapped(records))
        except ray.exceptions.RayError as error:
            self._failed(self._lose(host, _reason(error)))
        except Exception as error:
            self._loss = self._loss or error
            self._lost.set()
            self._failed(error)

    def _lose(self, host: Host, why: str) -> BaseException:
        """The error of the first host that is lost."""
        if self._loss is None:
            self._loss = _gone(host, why)
            self._lost.set()
        return self._loss


def _retrieved(task: asyncio.Future[Any]) -> None:
    """Take the exception of a task, else asyncio would print one that nobody asks for."""
    if not task.cancelled():
        task.exception()


def _gone(host: Host, why: str) -> UserError:
    return UserError(
        f"{host.process} is gone",
        path="cluster.updates",
        why=f"process {host.pid}: {why}",
        fix="see what ends it (memory?); `coterie run --resume RUN` goes on from the last checkpoint",
    )


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
