"""The actor that has what a run has once: its chat models, their keys, and bounds of calls.

It is on the node of the run's process: answers that were paid, and what is spent, are in the run's folder.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from coterie.backends.cluster.code import Code, use_code
from coterie.backends.cluster.records import Record, Records
from coterie.backends.cluster.slots import Slots
from coterie.backends.cluster.wire import answered
from coterie.core.errors import SystemFault
from coterie.core.protocols import ChatAnswer, ChatRequest


class Models(Protocol):
    """The chat models of a run, by number."""

    async def open(self, folder: Path | None) -> None:
        """Open all; `folder` is the run's."""

    async def answer(self, number: int, request: ChatRequest) -> ChatAnswer:
        """The answer of a model."""

    async def close(self) -> None:
        """Close all."""


class AccountHost:
    """The account of a run. A Ray actor; every method answers as `wire.answered` says."""

    process = "the run's account"

    def __init__(self) -> None:
        self._records = Records(logging.INFO)
        self._slots = Slots()
        self._asking: dict[tuple[str, int], asyncio.Task[ChatAnswer]] = {}
        """By rollout host and its number: requests that wait for their answers."""
        self._models: Models | None = None

    @answered
    async def open(self, code: Code, variables: Mapping[str, str], make: bytes, folder: Path | None) -> int:
        """Make and open the chat models; returns the process id.

        Args:
            variables: environment variables with secrets.
            make: the pickled function that makes the models.
            folder: the run's.
        """
        os.environ.update(variables)
        use_code(code)
        self._records.keep()
        made: Callable[[], Models] = pickle.loads(make)
        models = made()
        await models.open(folder)
        self._models = models
        return os.getpid()

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
        task = asyncio.ensure_future(self._models.answer(model, request))
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

    @answered
    async def records(self, patience: float) -> list[Record]:
        """What was logged here, once there is something, or after `patience` seconds."""
        return await self._records.next(patience)

    @answered
    async def close(self) -> list[Record]:
        """Let the calls that were sent finish, and close the models; returns what was logged."""
        self._records.end()
        if self._models is not None:
            await self._models.close()
        return self._records.take()
