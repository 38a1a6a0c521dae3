"""Worker processes of sandbox `local`: starting, lending and replacing them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.backends.models.patience import NoAnswer, Patience
from coterie.backends.sandboxes.distributions import ENVIRONMENT, FOLDERS_OF_PYTHON, Packages, environments
from coterie.core.errors import SystemFault

log = logging.getLogger("coterie")

HELLO_SECONDS = 60.0
GRACE_SECONDS = 10.0
"""A worker kills its programs at the wall limit. It counts as lost if it has not answered this long after."""
OTHER_SIDE_SECONDS = 0.1
"""Seconds for the other program of a pair after the first has ended."""
WORKER_CODE = (
    "import sys; sys.path.append(sys.argv[1]); from inside import worker; del sys.path[-1]; "
    "worker.main(sys.argv[2:])"
)
"""What a worker's interpreter runs; its arguments: the folder of `inside`, and the socket's descriptor."""
Module = tuple[str, bool, str]
"""Name, whether it is a package, source."""
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4
_lock = threading.Lock()
_hides, _former = 0, 1
"""How often this process was hidden, and its dumpable state before."""


def hide() -> None:
    """Hide this process until `unhide`, called as often: its /proc/<pid>/mem, environ and fd are root's.

    It can't be traced then and leaves no core dumps, and no debugger of the same user can attach to it.
    """
    global _hides, _former
    with _lock:
        if _hides == 0:
            _former = _prctl(_PR_GET_DUMPABLE)
            _prctl(_PR_SET_DUMPABLE, 0)
        _hides += 1


def unhide() -> None:
    """End one `hide`; the last one restores the former state."""
    global _hides
    with _lock:
        _hides -= 1
        if _hides == 0 and _former == 1:
            _prctl(_PR_SET_DUMPABLE, 1)


def is_hidden() -> bool:
    """Whether this process is hidden."""
    return _prctl(_PR_GET_DUMPABLE) == 0


def _prctl(option: int, value: int = 0) -> int:
    word = ctypes.c_ulong
    answer: int = ctypes.CDLL(None).prctl(option, word(value), word(0), word(0), word(0))
    return answer


class LostWorker(Exception):
    """The worker has ended, or does not answer."""


class UnusablePackage(Exception):
    """A worker can't import a package ahead: the module, and why."""

    def __init__(self, module: str, why: str) -> None:
        super().__init__(f"{module}: {why}")
        self.module, self.why = module, why


class WorkerProcess:
    """One worker process and the sockets to it; `orders` is its first message."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self._alone: bool = orders["alone"]
        pairs = [
            socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2 if self._alone else 1)
        ]
        self._controls = [ours for ours, _ in pairs]
        """With namespaces one for each side of a judged run, else one for all."""
        command = [os.path.realpath(sys.executable), "-P", "-s", "-S", "-X", "utf8", "-c", WORKER_CODE]
        with contextlib.ExitStack() as closing:
            numbers = [closing.enter_context(theirs).fileno() for _, theirs in pairs]
            # A new interpreter, not a fork: it has none of this process's memory, environment or files.
            # The starting thread must live on, since PR_SET_PDEATHSIG is bound to the thread.
            self.process = subprocess.Popen(
                [*command, str(Path(__file__).parent), *map(str, numbers)],
                env={"PYTHONHASHSEED": "0"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=numbers,
                cwd="/",
                start_new_session=True,
            )
        self.parent = os.getpid()
        """The process that started the worker, which alone may end it."""
        for control in self._controls:
            control.setblocking(False)
        self._send(orders)
        self.hello: dict[str, Any] = {}

    async def start(self) -> None:
        """Wait until the worker serves. Raises LostWorker, UnusablePackage, or OSError with the reason if it
        can't start."""
        self.hello = await self._receive(HELLO_SECONDS)
        if "unusable" in self.hello:
            raise UnusablePackage(*self.hello["unusable"])
        if "fault" in self.hello:
            raise OSError(self.hello["fault"])

    def begin(self, cells: Sequence[dict[str, Any]], descriptors: Sequence[list[int]], wall: float) -> None:
        """Send the order of a job: of each program what its cell needs to know, and its descriptors.

        Raises LostWorker.
        """
        if not self._alone:
            self._send({"cells": cells, "wall": wall}, [fd for fds in descriptors for fd in fds])
            return
        for side, (cell, fds) in enumerate(zip(cells, descriptors, strict=True)):
            self._send({"cell": cell, "count": len(cells), "wall": wall}, fds, side)

    def _send(self, message: dict[str, Any], descriptors: Sequence[int] = (), side: int = 0) -> None:
        try:
            socket.send_fds(self._controls[side], [json.dumps(message).encode()], list(descriptors))
        except OSError as error:
            raise LostWorker(str(error)) from error

    def stop(self, cell: int, why: str = "asked") -> None:
        """End one program of the present job."""
        with contextlib.suppress(LostWorker):
            if self._alone:
                self._send({"kill": why}, side=cell)
            else:
                self._send({"kill": cell})

    async def answers(self, count: int, wall: float) -> list[dict[str, Any]]:
        """Wait for the worker's answer: how each of the `count` programs of the job ended."""
        seconds = wall + GRACE_SECONDS
        if not self._alone:
            ended: list[dict[str, Any]] = (await self._receive(seconds))["ended"]
            return ended
        answers = [await self._receive(seconds)]
        for side in range(1, count):
            # An honest candidate ends by itself when the tests have ended.
            later = asyncio.get_running_loop().call_later(OTHER_SIDE_SECONDS, self.stop, side, "with")
            try:
                answers.append(await self._receive(seconds, side))
            finally:
                later.cancel()
        return answers

    async def _receive(self, seconds: float, side: int = 0) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        patience = Patience(f"a worker of the sandbox (process {self.process.pid})", seconds)
        try:
            message = await patience.wait(loop.sock_recv(self._controls[side], 1 << 16))
        except NoAnswer as silent:
            log.warning("%s: it is replaced", silent)
            raise LostWorker(str(silent)) from silent
        except OSError as error:
            raise LostWorker(f"a worker did not answer: {error!r}") from error
        if not message:
            raise LostWorker("a worker is gone")
        decoded: dict[str, Any] = json.loads(message)
        return decoded

    def kill(self) -> None:
        """End the worker at once, with all that it runs; not from a forked process."""
        if self.parent != os.getpid():
            return
        if not self._alone:
            # Without namespaces the kernel does not end the worker's programs; the worker does on SIGTERM.
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(2)
        self.process.kill()
        self.process.wait()
        self._close()  # last: where they close while the worker lives, the pool is closed

    def _close(self) -> None:
        for control in self._controls:
            control.close()

    async def close(self) -> None:
        """Close the sockets, which ends the worker; kill it if it does not end in time."""
        self._close()
        for _ in range(200):
            if self.process.poll() is not None:
                return
            await asyncio.sleep(0.01)
        self.kill()


class Pool:
    """A pool of workers, each lent to one job at a time."""

    def __init__(
        self,
        workers: int,
        *,
        alone: bool,
        packages: Packages,
        preload: Sequence[Module],
        without: Sequence[str] = (),
    ) -> None:
        self.size, self.alone = workers, alone
        self._orders = {
            "alone": alone,
            "preload": list(preload),
            "without": list(without),  # protections that tests switch off: "landlock", "filter"
            "shown": list(packages.shown),
            "folders": list(packages.folders),
            "modules": list(packages.modules),
            "environment": ENVIRONMENT,
            "hidden": environments(FOLDERS_OF_PYTHON, packages.shown),
        }
        self._hides = False
        self.idle: list[WorkerProcess] = []
        self.workers: set[WorkerProcess] = set()
        """All that live, those in `idle` too."""
        self._gate = asyncio.Semaphore(workers)
        self.base = ""
        """The folder of all programs' folders."""
        self.lost = 0
        """Workers that were lost and replaced."""

    async def open(self) -> dict[str, Any]:
        """Start all workers; returns the first worker's report on this host. Raises OSError, LostWorker,
        UnusablePackage."""
        if not self.alone:
            hide()
            self._hides = True
            self.base = tempfile.mkdtemp(prefix="coterie-sandbox-")
            if os.getuid() == 0:
                os.chmod(self.base, 0o711)  # each program has a user and a folder of its own in it
        try:
            starts = (self._start() for _ in range(self.size))
            started = await asyncio.gather(*starts, return_exceptions=True)
        except BaseException:
            await self.close()
            raise
        self.idle = [worker for worker in started if isinstance(worker, WorkerProcess)]
        for outcome in started:
            if isinstance(outcome, BaseException):
                await self.close()
                raise outcome
        hello = self.idle[0].hello
        return hello if self.alone else {**hello, "hidden": hello["hidden"] and is_hidden()}

    async def _start(self) -> WorkerProcess:
        worker = WorkerProcess({**self._orders, "base": self.base})
        self.workers.add(worker)
        try:
            await worker.start()
        except BaseException:
            self._discard(worker)
            raise
        return worker

    async def take(self) -> WorkerProcess:
        """Take a free worker. Raises SystemFault if a lost worker can't be replaced."""
        await self._gate.acquire()
        try:
            while self.idle:
                worker = self.idle.pop()
                if worker.process.poll() is None:
                    return worker
                self._discard(worker)
                self.lost += 1
            return await self._start()
        except (OSError, LostWorker, UnusablePackage) as error:
            self._gate.release()
            raise SystemFault(f"no worker of the sandbox can be started: {error}") from error
        except BaseException:
            self._gate.release()
            raise

    def give(self, worker: WorkerProcess) -> None:
        """Give a worker back after its job."""
        self.idle.append(worker)
        self._gate.release()

    def lose(self, worker: WorkerProcess) -> None:
        """Discard a worker that ended or whose state is unknown; `take` starts another when one is needed."""
        self._discard(worker)
        self.lost += 1
        self._gate.release()

    def _discard(self, worker: WorkerProcess) -> None:
        self.workers.discard(worker)
        worker.kill()

    async def close(self) -> None:
        await asyncio.gather(*(worker.close() for worker in self.workers))
        self.workers.clear()
        self.idle.clear()
        if self.base:
            shutil.rmtree(self.base, ignore_errors=True)
        if self._hides:
            self._hides = False
            unhide()
