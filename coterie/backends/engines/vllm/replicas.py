"""The servers of one base: which one gets a request, and what happens when one dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from coterie.backends.engines.vllm.server import ServerLost, VLLMServer
from coterie.backends.models import device_memory
from coterie.backends.models.lru import Lru
from coterie.core.errors import SystemFault, UserError
from coterie.core.types import Key

log = logging.getLogger("coterie")
T = TypeVar("T")


class Router:
    """Chooses a server for each request: the one that has the prompt's beginning in its cache.

    An episode stays with its server, since each of its prompts extends the one before; so do the episodes of
    one task, whose first prompts are alike. A server that is too busy is passed over.
    """

    BUSY = 16
    """Requests in flight beyond 1.5 times the least busy server's, from which on a server is passed over."""
    EPISODES = 100_000
    """Episodes and tasks whose server is remembered."""

    def __init__(self, servers: int) -> None:
        self.in_flight = [0] * servers
        self._given = [0] * servers
        """Episodes that went there."""
        self._places: Lru[tuple[Any, ...], tuple[int]] = Lru(self.EPISODES)

    def choose(self, key: Key | None, candidates: Sequence[int]) -> int:
        """One of the candidates (indices of servers, at least one)."""
        least = min(candidates, key=lambda index: (self.in_flight[index], self._given[index]))
        if key is None or len(candidates) == 1:
            return least
        most = 1.5 * self.in_flight[least] + self.BUSY
        task, episode = (key.task, key.epoch), (key.task, key.epoch, key.chain)
        for place in (episode, task):
            known = self._places.get(place)
            if known is not None and known[0] in candidates and self.in_flight[known[0]] <= most:
                self._given[known[0]] += place is task
                self._places.put(episode, known)
                return known[0]
        self._given[least] += 1
        self._places.put(episode, (least,))
        if self._places.get(task) is None:
            self._places.put(task, (least,))
        return least


class Replicas:
    """Servers with the same weights, and their recovery.

    A server that died, or whose version isn't the newest, gets no request until it is restarted and has the
    newest weights. Its requests go to other servers meanwhile; where there are none, they wait. A request
    that is repeated has the same seed, and so the same tokens.

    Args:
        name: of the base, for messages.
        restarts: most restarts of a server until `forgive`.
        refill: gives a restarted server its weights and adapters.
        current: whether a server has the newest weights.
        permit: raises SystemFault where the newest weights are no longer at hand; asked before a restart.
    """

    def __init__(
        self,
        servers: Sequence[VLLMServer],
        *,
        name: str,
        restarts: int,
        refill: Callable[[VLLMServer], Awaitable[None]],
        current: Callable[[VLLMServer], bool],
        permit: Callable[[], None] = lambda: None,
    ) -> None:
        self.servers = list(servers)
        self._name, self._most = name, restarts
        self._refill, self._current, self._permit = refill, current, permit
        self.router = Router(len(self.servers))
        self._restarts = [0] * len(self.servers)
        self._locks = [asyncio.Lock() for _ in self.servers]
        """Held while a server's weights are made: no request is sent to it then."""
        self.reviving: dict[int, asyncio.Task[None]] = {}
        """By number of the server: what restarts it."""
        self._faults: dict[int, BaseException] = {}
        """Why a server isn't restarted any more."""
        self._asleep = False
        self._turning = asyncio.Lock()
        """Held while the servers fall asleep or wake."""
        self.restarts = 0
        """Restarts so far."""
        self.repeated = 0
        """Requests so far that were sent again, since their server died."""

    async def open(self) -> None:
        """Start all servers at once."""
        await asyncio.gather(*(server.open() for server in self.servers))

    async def close(self) -> None:
        for task in self.reviving.values():
            task.cancel()
        await asyncio.gather(*self.reviving.values(), return_exceptions=True)
        await asyncio.gather(*(server.close() for server in self.servers))

    @property
    def in_flight(self) -> int:
        """Requests that wait for a result."""
        return sum(self.router.in_flight)

    def forgive(self) -> None:
        """Count restarts from zero again: there are new weights."""
        self._restarts = [0] * len(self.servers)
        self._faults.clear()

    async def run(self, key: Key | None, send: Callable[[VLLMServer], Awaitable[T]]) -> T:
        """Send a request to a server, and to another or a restarted one if it dies.

        Raises:
            SystemFault: the request failed, or its servers died more often than `restarts` allows.
        """
        lost: ServerLost | None = None
        for attempt in range(self._most + 1):
            index = await self._ready(key, lost)
            self.repeated += attempt > 0
            self.router.in_flight[index] += 1
            try:
                return await send(self.servers[index])
            except ServerLost as error:
                lost = error
            finally:
                self.router.in_flight[index] -= 1
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():  # the run stops: nothing is started any more
                raise asyncio.CancelledError from lost
            self.start_reviving(index, lost)
        raise SystemFault(f"vLLM died {self._most + 1} times in one request: {lost}") from lost

    async def each(self, work: Callable[[VLLMServer], Awaitable[None]], *, refilled: bool) -> None:
        """Do something with all servers at once, for new weights; a server that dies of it is restarted.

        Args:
            refilled: `refill` does the work too; False: it is done again after a restart.

        Raises:
            UserError: the weights can't be sent, or a server died too often.
        """
        await self._wake()
        results = await asyncio.gather(
            *(self._one(index, work, refilled) for index in range(len(self.servers))), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def sleep(self) -> None:
        """Free the servers' device memory until the next request or sync, unless requests are in flight."""
        async with self._turning:
            if self._asleep or self.in_flight:
                return
            self._asleep = True
            for index, server in enumerate(self.servers):
                if server.alive:
                    try:
                        await server.sleep()
                    except ServerLost as lost:
                        log.warning("vLLM of '%s' died when it should sleep: %s", self._name, lost)
                        self.start_reviving(index, lost)

    # -------------------------------------------------------------------------------------------- recovery

    async def _one(self, index: int, work: Callable[[VLLMServer], Awaitable[None]], refilled: bool) -> None:
        server = self.servers[index]
        try:
            async with self._locks[index]:
                if not server.alive:
                    raise ServerLost("it is not running")
                await work(server)
            return
        except ServerLost as lost:
            if isinstance(lost.__cause__, UserError):
                raise lost.__cause__ from lost
            try:
                await self._revive(index, lost)
            except SystemFault as fault:
                raise UserError(
                    f"vLLM of policy '{self._name}' can't take the new weights",
                    path="engine",
                    why=str(fault),
                    fix=f"see {server.output}",
                ) from fault
        if not refilled:
            await work(server)

    async def _wake(self) -> None:
        async with self._turning:
            if self._asleep:
                await device_memory.make_room()
                for index, server in enumerate(self.servers):
                    if server.alive:
                        try:
                            await server.wake()
                        except ServerLost as lost:
                            self.start_reviving(index, lost)
                self._asleep = False

    async def _ready(self, key: Key | None, lost: ServerLost | None) -> int:
        """The index of a server that can take a request now; waits for one.

        Raises:
            SystemFault: none can be had.
        """
        while True:
            if self._asleep:
                await self._wake()
            candidates = [
                index
                for index, server in enumerate(self.servers)
                if server.alive and self._current(server) and not self._locks[index].locked()
            ]
            if candidates:
                return self.router.choose(key, candidates)
            busy = [index for index, lock in enumerate(self._locks) if lock.locked()]
            if busy and not self.reviving:  # a sync: its end makes them ready, or restarts them
                async with self._locks[busy[0]]:
                    continue
            waiting = [index for index in range(len(self.servers)) if index not in self._faults]
            if not waiting:
                raise self._faults[0]
            for index in waiting:
                self.start_reviving(index, lost or ServerLost("it is not running"))
            tasks = [self.reviving[index] for index in waiting]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    def start_reviving(self, index: int, lost: ServerLost) -> None:
        """Restart a server beside the others' requests, unless that goes on already."""
        if index in self.reviving:
            return
        task = asyncio.ensure_future(self._revive(index, lost))
        self.reviving[index] = task

        def ended(task: asyncio.Task[None]) -> None:
            self.reviving.pop(index, None)
            if task.cancelled():
                self._faults[index] = SystemFault(f"the vLLM of '{self._name}' was closed")
            elif (error := task.exception()) is not None:
                self._faults[index] = error
                place = self.servers[index].output
                what = f"vLLM of '{self._name}', replica {index}, is given up"
                log.error("%s: %s; see %s", what, error, place)

        task.add_done_callback(ended)

    async def _revive(self, index: int, lost: ServerLost) -> None:
        """Restart a server with the newest weights, unless somebody did meanwhile.

        Raises:
            SystemFault: it died too often, or the newest weights can't be read any more.
            UserError: it can't start.
        """
        server = self.servers[index]
        async with self._locks[index]:
            reason = lost
            while not (server.alive and self._current(server)):
                cause = _cause(reason)
                if self._restarts[index] >= self._most:
                    raise SystemFault(
                        f"vLLM died {self._restarts[index] + 1} times with these weights: {cause}"
                    ) from reason
                self._permit()
                self._restarts[index] += 1
                self.restarts += 1
                log.warning(
                    "vLLM of '%s' is restarted: %s (replica %d; restart %d of at most %d with these "
                    "weights); see %s",
                    self._name, cause, index, self._restarts[index], self._most, server.output,
                )  # fmt: skip
                try:
                    await server.restart()
                    await self._refill(server)
                except ServerLost as again:
                    if isinstance(again.__cause__, UserError):
                        raise again.__cause__ from again
                    reason = again


def _cause(lost: ServerLost) -> str:
    """Why a server was lost. vLLM's error about a dead process says no more than that, and points above."""
    cause = lost.__cause__
    if cause is None or type(cause).__name__ == "EngineDeadError":
        return str(lost)
    return str(cause) or type(cause).__name__
