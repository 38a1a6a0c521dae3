"""The trainer hosts of a run, as its own process starts, calls, watches and ends them."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from coterie.backends.cluster.connection import Connection
from coterie.backends.cluster.hosts import HostGone, HostHandle, end
from coterie.backends.cluster.processes import trainer_name
from coterie.backends.cluster.transfer import Order
from coterie.backends.cluster.wire import compact
from coterie.backends.executors.ray.trainer_host import TrainerHost
from coterie.backends.models.patience import Patience
from coterie.core.errors import UserError

T = TypeVar("T")
CLOSE_SECONDS = 10.0
"""Most seconds for which trainers may close; then their processes are killed."""
LOOK = 0.5
"""Most seconds between two looks at what a call waits for."""


class TrainerHandle(HostHandle):
    """A trainer host.

    Args:
        weights: the name of its set of weights.
    """

    def __init__(self, ray: Any, actor: Any, weights: str, policies: Sequence[str]) -> None:
        super().__init__(ray, actor, f"the trainer of {', '.join(policies)}")
        self.weights, self.policies = weights, tuple(policies)
        self.versions: dict[str, int] = {}
        """Of its policies' weights."""


class TrainerHosts:
    """Starts, calls and ends the trainer hosts.

    One that dies, or gives no answer for `cluster.timeout` seconds, ends the run: what it had is in no other
    process.

    Args:
        failed: called with the error, as soon as one is lost.
    """

    def __init__(self, connection: Connection, failed: Callable[[BaseException], None]) -> None:
        self._connection, self.failed = connection, failed
        self.hosts: list[TrainerHandle] = []
        self._loss: BaseException | None = None
        self._lost = asyncio.Event()

    async def start(self, sets: Mapping[str, Sequence[str]]) -> None:
        """Start a host for each set of weights.

        Raises:
            UserError: the cluster has no room for one, or its process ends.
        """
        settings = self._connection.settings
        for name, policies in sets.items():
            actor = self._connection.actor(TrainerHost, cpus=settings.rank_cpus, name=trainer_name(name))
            self.hosts.append(TrainerHandle(self._connection.ray, actor, name, policies))
        await asyncio.gather(*map(self._begin, self.hosts))

    async def _begin(self, host: TrainerHandle) -> None:
        try:
            await host.placed(self._connection, trainer_name(host.weights))
            await host.begin(host.name)
        except HostGone as gone:
            raise _gone(host, str(gone)) from gone
        host.watching = asyncio.ensure_future(self._watch(host))

    def of(self, policy: str) -> TrainerHandle:
        """The host of a policy."""
        return next(host for host in self.hosts if policy in host.policies)

    async def close(self) -> None:
        """Close the trainers, and end their processes."""
        await end(self._connection, self.hosts, min(CLOSE_SECONDS, self._connection.settings.timeout))
        self.hosts.clear()

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

    async def raw(self, host: TrainerHandle, method: str, *arguments: Any) -> Any:
        """What a method of a host returns."""
        return await self.answer(host, host.sent(method, *arguments))

    async def answer(self, host: TrainerHandle, reference: Any) -> Any:
        """The answer of a host to a call.

        Raises:
            UserError: the host is lost.
            Exception: what the method raised.
        """
        try:
            return await host.answer(reference)
        except HostGone as gone:
            raise self._lose(host, str(gone)) from gone

    async def trainer(self, host: TrainerHandle, method: str, *arguments: Any) -> Any:
        """What a method of a host's trainer returns."""
        return self._taken(host, await self.raw(host, "call", method, compact(arguments)))

    async def fulfil(self, host: TrainerHandle, order: Order) -> None:
        """Let a host send weights to a replica; a caller that is cancelled drops the order there."""
        try:
            await self.all([self.raw(host, "fulfil", order)])
        except asyncio.CancelledError:
            host.sent("drop", order.number)
            raise

    def trainers_now(self, hosts: Sequence[TrainerHandle], method: str, *arguments: Any) -> list[Any]:
        """`trainer` of hosts, for a caller that can't await; the event loop stands still meanwhile."""
        answers = self.now({host: ("call", method, compact(arguments)) for host in hosts})
        return [self._taken(host, answer) for host, answer in answers.items()]

    @staticmethod
    def _taken(host: TrainerHandle, answer: tuple[bytes, dict[str, int]]) -> Any:
        """What a method of a trainer returned, of the answer of `TrainerHost.call`."""
        data, host.versions = answer
        return pickle.loads(data)

    def now(self, calls: Mapping[TrainerHandle, tuple[Any, ...]]) -> dict[TrainerHandle, Any]:
        """What methods of hosts return, which run at once; the event loop stands still meanwhile.

        Args:
            calls: by host: the name of the method, and its arguments.

        Raises:
            UserError: a host is lost.
            Exception: what the first method that failed has raised.
        """
        self.check()
        ray, timeout = self._connection.ray, self._connection.settings.timeout
        answers = {host: host.sent(method, *arguments) for host, (method, *arguments) in calls.items()}
        alive = {host: (host.sent("alive"), Patience(host.name, timeout)) for host in calls}
        while ray.wait([*answers.values()], num_returns=len(answers), timeout=min(LOOK, timeout / 4))[1]:
            for host, (asked, patience) in alive.items():
                if ray.wait([asked], timeout=0)[0]:
                    alive[host] = host.sent("alive"), Patience(host.name, timeout)
                elif not patience.left:
                    raise self._lose(host, f"no answer for {timeout:g} s")
        results = {}
        for host, answer in answers.items():
            try:
                results[host] = host.answer_now(answer)
            except HostGone as gone:
                raise self._lose(host, str(gone)) from gone
        return results

    # -------------------------------------------------------------------------------------------- lost hosts

    def check(self) -> None:
        """Raise what has become of a lost host."""
        if self._loss is not None:
            raise self._loss

    async def _watch(self, host: TrainerHandle) -> None:
        """Log what is logged there, until the host is lost."""
        timeout = self._connection.settings.timeout
        try:
            error = self._lose(host, await host.watch(timeout / 4, timeout))
        except Exception as raised:
            error = self._loss = self._loss or raised
            self._lost.set()
        self.failed(error)

    def _lose(self, host: TrainerHandle, why: str) -> BaseException:
        """The error of the first host that is lost."""
        if self._loss is None:
            self._loss = _gone(host, why)
            self._lost.set()
        return self._loss


def _retrieved(task: asyncio.Future[Any]) -> None:
    """Take the exception of a task, else asyncio would print one that nobody asks for."""
    if not task.cancelled():
        task.exception()


def _gone(host: TrainerHandle, why: str) -> UserError:
    return UserError(
        f"{host.name} is gone",
        path="cluster.updates",
        why=f"process {host.pid}: {why}",
        fix="see what ends it (memory?); `coterie run --resume RUN` goes on from the last checkpoint",
    )
