"""The time in which a sandbox is open, in one process and one event loop, with the runs in flight."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from coterie.core.errors import ConfigError, SystemFault

T = TypeVar("T")
Step = Callable[[], Awaitable[None]]


class SandboxLifetime:
    """Opens and closes a sandbox once, and ends its runs with it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
        self._lock = asyncio.Lock()
        self._open = False
        self._runs: dict[asyncio.Task[Any], bool] = {}
        """The runs in flight, and whether `close` ended them."""

    async def open(self, start: Step, end: Step) -> None:
        """Call `start`, unless the sandbox is open already. `end` ends what a closed event loop left.

        Raises:
            ConfigError: another process or event loop opened it.
        """
        if self._loop is not None and self._loop.is_closed() and self._process == os.getpid():
            await self.close(end)
        self._check_place()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop, self._process, self._lock = loop, os.getpid(), asyncio.Lock()
        async with self._lock:
            if self._open:
                return
            self._loop, self._process = loop, os.getpid()
            try:
                await start()
            except BaseException:
                self._loop, self._process = None, 0
                raise
            self._open = True

    async def close(self, end: Step) -> None:
        """End the runs in flight with a SystemFault, then call `end`. Nothing in a forked process: its copies
        of the sandbox's sockets and process ids are the opener's."""
        if self._process not in (0, os.getpid()):
            return
        here, loop = asyncio.get_running_loop(), self._loop
        if loop is not None and loop is not here and loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._close(end), loop))
        elif loop is None or loop is here:
            await self._close(end)
        else:  # its loop has ended, and no task of it goes on
            self._runs.clear()
            self._lock = asyncio.Lock()
            await self._close(end)

    async def _close(self, end: Step) -> None:
        self._open = False
        self._cut()
        async with self._lock:
            self._open = False
            if runs := self._cut():
                await asyncio.wait(runs)
            await end()
            self._loop, self._process = None, 0

    def _cut(self) -> list[asyncio.Task[Any]]:
        """Cancel the runs in flight; they need a moment to end."""
        for run, cut in self._runs.items():
            if not cut:
                self._runs[run] = True
                run.cancel()
        return list(self._runs)

    async def during(self, run: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a run, which `close` ends at once.

        Raises:
            SystemFault: the sandbox is not open, or was closed meanwhile.
            ConfigError: another process or event loop opened it.
        """
        self._check_place()
        if not self._open:
            raise SystemFault("the sandbox is not open: await sandbox.open() first")
        task = asyncio.ensure_future(run())
        self._runs[task] = False
        try:
            return await task
        except asyncio.CancelledError:
            ours = asyncio.current_task()
            if self._runs.get(task) and not (ours is not None and ours.cancelling()):
                raise SystemFault("the sandbox was closed during the run") from None
            raise
        finally:
            self._runs.pop(task, None)

    def _check_place(self) -> None:
        if self._process not in (0, os.getpid()):
            raise ConfigError(
                "this process did not open the sandbox",
                why=f"process {self._process} did, and a forked process can't share its connections",
                fix="open a sandbox of its own in this process",
            )
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise ConfigError(
                "another event loop opened the sandbox",
                why="its connections belong to that loop"
                + (", which has ended" if self._loop.is_closed() else ""),
                fix="open it in the event loop that uses it: one asyncio.run for open, run, judge and close",
            )
