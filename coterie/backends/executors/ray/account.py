"""The account: what a run has once, its chat models, their keys, and bounds of calls, which are semaphores.

Its actor is on the node of the run's process: answers that were paid, and what is spent, are in the run's
folder. `RunAccount` starts and ends it, `AccountClient` is what a rollout host asks.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from coterie.backends.cluster.connection import Connection
from coterie.backends.cluster.hosts import HostGone, HostHandle, HostProgram
from coterie.backends.cluster.processes import MODELS
from coterie.backends.cluster.wire import Code, answered, own_code
from coterie.core.errors import ConfigError, SystemFault, UserError
from coterie.core.protocols import ChatAnswer, ChatRequest

Holder = tuple[str, int]
"""A process, and its number for the slot."""


@dataclass(slots=True)
class _Bound:
    limit: int
    holders: set[Holder] = field(default_factory=set)
    waiting: dict[Holder, asyncio.Future[None]] = field(default_factory=dict)
    """Oldest first."""

    def grant(self) -> None:
        """Give free slots to those that have waited longest."""
        while self.waiting and len(self.holders) < self.limit:
            holder = next(iter(self.waiting))
            self.holders.add(holder)
            self.waiting.pop(holder).set_result(None)


class Slots:
    """Gives slots in the order in which they were asked for; a process that is gone holds none."""

    def __init__(self) -> None:
        self._bounds: dict[str, _Bound] = {}
        self._dropped: set[str] = set()
        self._early: set[Holder] = set()
        """Slots that were given back before they were asked for: messages may overtake each other."""

    async def acquire(self, name: str, limit: int, process: str, number: int) -> None:
        """Wait for a slot.

        Args:
            name: of the semaphore.
            limit: slots that it has.
            number: of this slot, chosen by the process; `release` takes the same.

        Raises:
            SystemFault: the process counts as gone.
        """
        if process in self._dropped:
            raise SystemFault(f"{process} counts as gone, and its jobs are played elsewhere")
        if (process, number) in self._early:
            self._early.remove((process, number))
            raise SystemFault("the slot was given back before it was asked for")
        bound = self._bounds.setdefault(name, _Bound(limit))
        bound.limit = limit
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        bound.waiting[process, number] = waiting
        bound.grant()
        try:
            await waiting
        except asyncio.CancelledError:
            self._free(bound, (process, number))
            raise

    def release(self, name: str, process: str, number: int) -> None:
        """Give a slot back, or wait for it no longer."""
        bound = self._bounds.setdefault(name, _Bound(0))
        if not self._free(bound, (process, number)) and process not in self._dropped:
            self._early.add((process, number))

    def _free(self, bound: _Bound, holder: Holder) -> bool:
        """Free a slot; returns whether the process had it or waited for it."""
        waiting = bound.waiting.pop(holder, None)
        if waiting is not None:
            waiting.cancel()
        held = holder in bound.holders
        bound.holders.discard(holder)
        bound.grant()
        return held or waiting is not None

    def drop(self, process: str) -> None:
        """Free all that a process has or waits for; it gets nothing any more."""
        self._dropped.add(process)
        for bound in self._bounds.values():
            for holder in [*bound.waiting, *bound.holders]:  # no slot may go from one of its to another
                if holder[0] == process:
                    self._free(bound, holder)

    def held(self, name: str) -> int:
        """Slots of a semaphore that are taken."""
        return len(self._bounds[name].holders) if name in self._bounds else 0


CLOSE_SECONDS = 600.0
"""Time for the calls that were sent: each has its own time-out, two minutes by default."""


class AccountHost(HostProgram):
    """The account of a run. A Ray actor."""

    process = "the run's account"

    def __init__(self) -> None:
        super().__init__()
        self._slots = Slots()
        self._asking: dict[tuple[str, int], asyncio.Task[ChatAnswer]] = {}
        """By rollout host and its number: requests that wait for their answers."""
        self._models: Any = None
        """The chat models, as `compose.account.SharedModels`."""

    @answered
    async def open(self, code: Code, variables: Mapping[str, str], make: bytes, folder: Path | None) -> None:
        """Make and open the chat models.

        Args:
            variables: environment variables with secrets.
            make: the pickled function that makes the models.
            folder: the run's.
        """
        self._import(code, variables)
        models = pickle.loads(make)()
        await models.open(folder)
        self._models = models

    @answered
    async def answer(self, host: str, number: int, model: int, request: ChatRequest) -> ChatAnswer:
        """The answer of a chat model.

        Args:
            number: of the request, chosen by the host; `cancel` takes the same.

        Raises:
            SystemFault: it was cancelled.
            Exception: what the model raised.
        """
        assert self._models is not None, "`open` comes before any request"
        task: asyncio.Task[ChatAnswer] = asyncio.ensure_future(self._models.answer(model, request))
        self._asking[host, number] = task
        try:
            return await task
        except asyncio.CancelledError:  # Ray would take it for a cancelled call of its own
            raise SystemFault("the request was cancelled") from None
        finally:
            self._asking.pop((host, number), None)

    @answered
    async def cancel(self, host: str, number: int) -> None:
        """Wait no longer for an answer; what is sent is paid, and its answer is stored."""
        if task := self._asking.get((host, number)):
            task.cancel()

    @answered
    async def acquire(self, name: str, limit: int, host: str, number: int) -> None:
        """Wait for a slot, as `Slots.acquire`."""
        try:
            await self._slots.acquire(name, limit, host, number)
        except asyncio.CancelledError:
            raise SystemFault("the slot is not needed any more") from None

    @answered
    async def release(self, name: str, host: str, number: int) -> None:
        """Give a slot back."""
        self._slots.release(name, host, number)

    @answered
    async def drop(self, host: str) -> None:
        """Free the slots of a host that is gone, and cancel its requests."""
        self._slots.drop(host)
        for (asking, _), task in [*self._asking.items()]:
            if asking == host:
                task.cancel()

    async def _close(self) -> None:
        """Let the calls that were sent finish, and close the models."""
        if self._models is not None:
            await self._models.close()


async def call_account(host: HostHandle, method: str, *arguments: Any) -> Any:
    """What a method of the account returns.

    Raises:
        UserError: its process is gone.
        Exception: what the method raised.
    """
    try:
        return await host.call(method, *arguments)
    except HostGone as gone:
        raise _gone(str(gone)) from gone


def _gone(why: str) -> UserError:
    fix = "`coterie run --resume RUN` goes on from the last checkpoint"
    return UserError("the process of the run's account is gone", path="cluster", why=why, fix=fix)


class RunAccount:
    """The account in the run's process, which starts and ends it.

    Args:
        shared: what the run has once, as `compose.account.Shared`.
    """

    def __init__(self, shared: Any, connection: Connection) -> None:
        self.shared, self._connection = shared, connection
        self.host: HostHandle | None = None
        """None: the run shares nothing."""

    @property
    def actor(self) -> Any:
        """Ray's handle of it, for rollout hosts; None: the run shares nothing."""
        return None if self.host is None else self.host.actor

    def pickled_side(self) -> bytes:
        """The pickled function that makes a rollout side.

        Raises:
            ConfigError: it can't be pickled.
        """
        try:
            return bytes(self._connection.ray.cloudpickle.dumps(self.shared.make_side))
        except Exception as error:  # what is pickled raises what it likes
            what, why = "the rollout side can't be sent elsewhere", f"{type(error).__name__}: {error}"
            fix = "keep what can't be pickled out of the configuration, or set executor=local"
            raise ConfigError(what, path="executor", why=why, fix=fix) from error

    def start(self) -> None:
        """Start its process, unless there is nothing to share; `actor` is known from then on."""
        if self.shared.anything:
            actor = self._connection.actor(AccountHost, here=True, name=MODELS)
            self.host = HostHandle(self._connection.ray, actor, AccountHost.process)

    async def open(self, folder: Path | None, lost: Callable[[BaseException], None]) -> None:
        """Open the chat models there.

        Args:
            folder: the run's.
            lost: called with the reason when its process is gone.

        Raises:
            UserError: a chat model can't be opened.
        """
        if self.host is None:
            return
        make = self._connection.ray.cloudpickle.dumps(self.shared.make_models)
        variables = self._connection.secrets() if self.shared.models else {}
        self.host.pid = await call_account(self.host, "begin")
        await call_account(self.host, "open", own_code(), variables, make, folder)
        self.host.watching = asyncio.ensure_future(self._watch(self.host, lost))

    async def _watch(self, host: HostHandle, lost: Callable[[BaseException], None]) -> None:
        try:  # a chat model may be busy for as long as it likes
            raise _gone(await host.watch(self._connection.settings.timeout / 4, silence=math.inf))
        except Exception as error:
            lost(error)

    async def drop(self, host: str) -> None:
        """Free what a host that is gone had."""
        if self.host is not None:
            await call_account(self.host, "drop", host)

    async def close(self) -> None:
        """Close the chat models, whose calls that were sent finish first, and end the process."""
        if self.host is None or self.host.watching is None:
            return
        self.host.watching.cancel()
        await asyncio.gather(self.host.watching, return_exceptions=True)
        await self.host.close(CLOSE_SECONDS)
        self._connection.remove(self.host.actor)


class AccountClient:
    """What a rollout host asks the account for.

    Args:
        account: None: the run has none, and bounds are of this process.
        host: this host's name there.
    """

    def __init__(self, account: HostHandle | None, host: str) -> None:
        self._account, self._host = account, host
        self._numbers = itertools.count(1)
        """Those that this host has not used."""
        self._sending: set[asyncio.Future[Any]] = set()

    async def answer(self, model: int, request: ChatRequest) -> ChatAnswer:
        """The answer of a shared chat model.

        Raises:
            SystemFault: no answer; what depends on it is missing.
            UserError: no request can be answered, or the account's process is gone.
        """
        number = next(self._numbers)
        try:
            answer: ChatAnswer = await self._call("answer", self._host, number, model, request)
        except asyncio.CancelledError:
            self.tell("cancel", self._host, number)
            raise
        return answer

    def slots(self, name: str, limit: int) -> asyncio.Semaphore:
        """A semaphore that all hosts have in common."""
        return asyncio.Semaphore(limit) if self._account is None else SharedSemaphore(name, limit, self)

    async def acquire(self, name: str, limit: int) -> int:
        """A slot of a common semaphore; returns its number."""
        number = next(self._numbers)
        try:
            await self._call("acquire", name, limit, self._host, number)
        except asyncio.CancelledError:
            self.release(name, number)
            raise
        return number

    def release(self, name: str, number: int) -> None:
        """Give a slot back."""
        self.tell("release", name, self._host, number)

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method whose answer nobody waits for."""
        sending = asyncio.ensure_future(self._call(method, *arguments))
        self._sending.add(sending)
        sending.add_done_callback(self._end)

    async def _call(self, method: str, *arguments: Any) -> Any:
        assert self._account is not None, "a run that shares something has an account"
        return await call_account(self._account, method, *arguments)

    def _end(self, sending: asyncio.Future[Any]) -> None:
        self._sending.discard(sending)
        if not sending.cancelled():
            sending.exception()  # where the account is gone, its next answer says so


class SharedSemaphore(asyncio.Semaphore):
    """A semaphore of the account. At most its number of requests of one host wait there."""

    def __init__(self, name: str, limit: int, account: AccountClient) -> None:
        super().__init__(limit)
        self._name, self._limit, self._account = name, limit, account
        self._own = asyncio.Semaphore(limit)
        self._numbers: list[int] = []
        """Slots that this host has; they are alike."""

    async def acquire(self) -> Literal[True]:
        """Wait for a slot of this host, then of the run."""
        await self._own.acquire()
        try:
            self._numbers.append(await self._account.acquire(self._name, self._limit))
        except BaseException:
            self._own.release()
            raise
        return True

    def release(self) -> None:
        """Give a slot back."""
        self._account.release(self._name, self._numbers.pop())
        self._own.release()
