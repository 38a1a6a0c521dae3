"""An HTTP server on 127.0.0.1 in a thread of its own; no library hides faults of the wire."""

from __future__ import annotations

import asyncio
import functools
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import pytest


@contextmanager
def one_store_of_certificates() -> Iterator[None]:
    """Every client of an SDK reads all certificates anew, which costs more than most tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


class Message(NamedTuple):
    """A request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes


class Loopback(ABC):
    """`with Server() as server:` answers at `server.port` until the block ends."""

    port = 0

    def __enter__(self) -> Self:
        ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self.thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self.thread.join(20)
        assert not self.thread.is_alive()

    @abstractmethod
    async def reply(
        self, message: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; whether the connection stays open."""

    async def listen(self) -> None:
        """Accept connections, again on the same port."""
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", self.port, backlog=256, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def hang_up(self) -> None:
        """Cut every connection, and accept none."""
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        await self.listen()
        ready.set()
        await self._stop.wait()
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(writer)
        try:
            while await self.reply(await _message(reader), reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(writer)
            self._tasks.discard(task)
            writer.close()


async def _message(reader: asyncio.StreamReader) -> Message:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    method, path, _ = first.split(" ", 2)
    return Message(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))
