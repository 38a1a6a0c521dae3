"""The account as the other processes of a run see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from coterie.backends.cluster.code import own_code
from coterie.backends.cluster.connection import Connection
from coterie.backends.cluster.processes import MODELS
from coterie.backends.cluster.records import log_again
from coterie.backends.cluster.wire import unwrapped
from coterie.backends.executors.ray.account import AccountHost
from coterie.core.errors import UserError
from coterie.core.protocols import ChatAnswer, ChatRequest

CLOSE_SECONDS = 600.0
"""Time for the calls that were sent: each has its own time-out, two minutes by default."""
Call = Callable[..., Any]
"""Calls a method of the account: its name, then its arguments; returns an awaitable of its answer."""


async def call_account(handle: Any, method: str, *arguments: Any) -> Any:
    """What a method of the account returns.

    Raises:
        UserError: its process is gone.
        Exception: what the method raised.
    """
    import ray

    try:
        answer = await getattr(handle, method).remote(*arguments)
    except ray.exceptions.RayError as error:
        why = str(error).strip().partition("\n")[0]
        fix = "`coterie run --resume RUN` goes on from the last checkpoint"
        what = "the process of the run's account is gone"
        raise UserError(what, path="cluster", why=why, fix=fix) from error
    return unwrapped(answer)


class RunAccount:
    """The account in the run's process, which starts and ends it.

    Args:
        shared: what the run has once, as `compose.account.Shared`.
    """

    def __init__(self, shared: Any, connection: Connection) -> None:
        self.shared, self._connection = shared, connection
        self.handle: Any = None
        """Of its actor; None: the run shares nothing."""
        self.pid = 0
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start its process, unless there is nothing to share; `handle` is known from then on."""
        if self.shared.anything:
            self.handle = self._connection.actor(AccountHost, here=True, name=MODELS)

    async def open(self, folder: Path | None, lost: Callable[[BaseException], None]) -> None:
        """Open the chat models there.

        Args:
            folder: the run's.
            lost: called with the reason when its process is gone.

        Raises:
            UserError: a chat model can't be opened.
        """
        if self.handle is None:
            return
        make = self._connection.ray.cloudpickle.dumps(self.shared.make_models)
        variables = self._connection.secrets() if self.shared.models else {}
        self.pid = await call_account(self.handle, "open", own_code(), variables, make, folder)
        self._watching = asyncio.ensure_future(self._watch(lost))

    async def _watch(self, lost: Callable[[BaseException], None]) -> None:
        try:
            while True:
                patience = self._connection.settings.timeout / 4
                log_again(await call_account(self.handle, "records", patience))
        except Exception as error:
            lost(error)

    async def drop(self, host: str) -> None:
        """Free what a host that is gone had."""
        if self.handle is not None:
            await call_account(self.handle, "drop", host)

    async def close(self) -> None:
        """Close the chat models, whose calls that were sent finish first, and end the process."""
        if self._watching is None:
            return
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        with suppress(UserError, TimeoutError):  # its process is gone or hangs, and is killed
            async with asyncio.timeout(CLOSE_SECONDS):
                log_again(await call_account(self.handle, "close"))
        self._connection.remove(self.handle)


class AccountClient:
    """What a rollout host asks the account for.

    Args:
        call: calls a method of the account; None: the run has none, and bounds are of this process.
        host: this host's name there.
    """

    def __init__(self, call: Call | None, host: str) -> None:
        self._call, self._host = call, host
        self._numbers = 0
        self._sending: set[asyncio.Future[Any]] = set()

    def number(self) -> int:
        """A number that this host has not used."""
        self._numbers += 1
        return self._numbers

    async def answer(self, model: int, request: ChatRequest) -> ChatAnswer:
        """The answer of a shared chat model.

        Raises:
            SystemFault: no answer; what depends on it is missing.
            UserError: no request can be answered, or the account's process is gone.
        """
        assert self._call is not None, "a run with shared chat models has an account"
        number = self.number()
        try:
            answer: ChatAnswer = await self._call("answer", self._host, number, model, request)
        except asyncio.CancelledError:
            self.tell("cancel", self._host, number)
            raise
        return answer

    def slots(self, name: str, limit: int) -> asyncio.Semaphore:
        """A semaphore that all hosts have in common."""
        return asyncio.Semaphore(limit) if self._call is None else SharedSemaphore(name, limit, self)

    async def acquire(self, name: str, limit: int) -> int:
        """A slot of a common semaphore; returns its number."""
        assert self._call is not None
        number = self.number()
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
        assert self._call is not None
        sending = asyncio.ensure_future(self._call(method, *arguments))
        self._sending.add(sending)
        sending.add_done_callback(self._end)

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
