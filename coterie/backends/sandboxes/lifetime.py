"""The base of the sandboxes: when one is open, its runs in flight, and the files that it keeps."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from coterie.backends.sandboxes.kept_files import KeepingFiles
from coterie.core.errors import ConfigError, SystemFault
from coterie.core.plugins import Plugin
from coterie.discovery.members import KeptFiles

T = TypeVar("T")


class OpenableSandbox(Plugin, ABC):
    """Opens and closes a sandbox once, in one process and one event loop, and ends its runs with it.

    A kind's class gives `_start` and `_end`, and has its runs in `_during`.
    """

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
        self._lock = asyncio.Lock()
        self._opened = False
        self._runs: dict[asyncio.Task[Any], bool] = {}
        """The runs in flight, and whether `close` ended them."""
        self._slots: AbstractAsyncContextManager[Any] = nullcontext()
        self._files = KeepingFiles(self.config.keep_files_in, self._path)

    @property
    def _path(self) -> str:
        return getattr(self.build, "path", "") or "sandbox"

    @abstractmethod
    async def _start(self) -> None:
        """Open the sandbox; where it raises, `_end` follows."""

    @abstractmethod
    async def _end(self) -> None:
        """End what `_start` has opened."""

    def kept(self, files: KeptFiles, path: str) -> Path:
        """The file with a content, to be read only. Raises SystemFault where this machine lacks it."""
        return self._files.kept(files, path)

    async def open(self) -> None:
        """Open the sandbox; nothing where it is open. What a closed event loop left is ended first.

        Raises:
            ConfigError: another process or event loop opened it; and as of `_start`.
            SystemFault: as of `_start`.
        """
        if self._loop is not None and self._loop.is_closed() and self._process == os.getpid():
            await self.close()
        self._check_place()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop, self._process, self._lock = loop, os.getpid(), asyncio.Lock()
        async with self._lock:
            if self._opened:
                return
            self._loop, self._process = loop, os.getpid()
            try:
                await self._start()
            except BaseException:
                await self._end()
                self._loop, self._process = None, 0
                raise
            self._opened = True

    async def close(self) -> None:
        """End the runs in flight with a SystemFault, and the sandbox. Nothing in a forked process: its copies
        of the sandbox's sockets and process ids are the opener's."""
        if self._process not in (0, os.getpid()):
            return
        here, loop = asyncio.get_running_loop(), self._loop
        if loop is not None and loop is not here and loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._close(), loop))
        elif loop is None or loop is here:
            await self._close()
        else:  # its loop has ended, and no task of it goes on
            self._runs.clear()
            self._lock = asyncio.Lock()
            await self._close()

    async def _close(self) -> None:
        self._opened = False
        self._cut()
        async with self._lock:
            self._opened = False
            if runs := self._cut():
                await asyncio.wait(runs)
            await self._end()
            self._loop, self._process = None, 0

    def _cut(self) -> list[asyncio.Task[Any]]:
        """Cancel the runs in flight; they need a moment to end."""
        for run, cut in self._runs.items():
            if not cut:
                self._runs[run] = True
                run.cancel()
        return list(self._runs)

    async def _during(self, run: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a run, which `close` ends at once.

        Raises:
            SystemFault: the sandbox is not open, or was closed meanwhile.
            ConfigError: another process or event loop opened it.
        """
        self._check_place()
        if not self._opened:
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
