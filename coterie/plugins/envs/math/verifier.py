"""The verifier: whether two answers are equal, by `math_verify` in processes that can be ended.

`math_verify` reads LaTeX with a grammar and compares with sympy. Some answers keep it busy for hours or make
it take all memory, and its own time-out works by a signal that only a main thread gets. So it runs in a few
processes of its own (`worker.py`), started at the first answer and used again. Two plain numbers need none.

What the answer causes and what the system causes are told apart (invariant 3):

- The processor time is used up: the kernel ends the comparison by SIGPROF. The answer's fault: `PolicyFault`.
- The worker runs out of its memory or its stack: Python reports it. The answer's fault.
- The worker dies of something else: tried again with a fresh worker. Where that one dies too, it is the
  answer's fault, unless both were ended by a signal that an answer can't cause (SIGKILL, SIGTERM, ...) or
  never started: `SystemFault`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from coterie.core.errors import MissingExtra, PolicyFault, SystemFault
from coterie.plugins.envs.math.answers import MOST, number
from coterie.plugins.envs.math.notation import AnswerComparison, comparison

log = logging.getLogger("coterie")

_SCRIPT = Path(__file__).with_name("worker.py")
_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
"""Signals that nothing in an answer makes a worker die of."""
_MEMORY = 1 << 30
"""Address space of a worker, in bytes; warm it takes a quarter of that."""
_CLOSED = "the verifier was closed during the comparison"
SPARE_SECONDS = 30.0
"""Seconds that a worker has for a comparison beside `Verifier`'s `patience`."""
_START_SECONDS = 120.0
"""For the import of sympy on a busy machine."""


class Verifier:
    """Compares answers in at most `workers` processes; from any thread and any event loop.

    Args:
        seconds: processor time for one comparison. The start of a worker isn't part of it.
        workers: comparisons that run at once.
        memory: address space of a worker, in bytes.
        patience: a worker that has not had `seconds` of the processor after this many times as long, plus
            `SPARE_SECONDS`, is lost: the machine's fault.

    Raises:
        MissingExtra: math_verify is not installed.
    """

    def __init__(
        self, *, seconds: float = 5.0, workers: int = 2, memory: int = _MEMORY, patience: float = 20.0
    ) -> None:
        if find_spec("math_verify") is None:
            raise MissingExtra("math_verify", "math", needed_by="environment 'math'")
        self._seconds, self._workers, self._memory, self._patience = seconds, workers, memory, patience
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._alive: dict[int, _Worker] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._closed = 0
        """How often it was closed."""
        weakref.finalize(self, _end, self._alive)
        _verifiers.add(self)

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the worker processes."""
        return tuple(self._alive)

    async def equal(self, answer: str, reference: str) -> bool:
        """Whether an answer equals the reference; both are the content of a box.

        The event loop goes on meanwhile.

        Raises:
            PolicyFault: the answer is too long, takes too long, or breaks its worker.
            SystemFault: two workers were lost that the answer did not break.
        """
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._workers, "math-verifier")
            future = self._threads.submit(self.compare, answer, reference)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if future.cancelled() and not (task is not None and task.cancelling()):
                raise SystemFault(_CLOSED) from None
            raise

    def compare(self, answer: str, reference: str) -> bool:
        """As `equal`; blocks the thread."""
        if len(answer) > MOST:
            raise PolicyFault(f"the answer has {len(answer)} characters; at most {MOST} are read")
        numbers = number(answer), number(reference)
        if None not in numbers:  # exact, and a thousand times as fast
            return numbers[0] == numbers[1]
        job = comparison(answer, reference)
        if isinstance(job, bool):
            return job
        ends, closed = [], self._closed
        for _ in range(2):
            worker = self._take(closed)
            try:
                result = worker.ask(job, self._seconds, self._seconds * self._patience + SPARE_SECONDS)
            except _Lost as lost:
                self._drop(worker)
                self._check_open(closed)
                ends.append(lost)
                continue
            except BaseException:
                self._drop(worker)
                raise
            self._give_back(worker)
            if "equal" in result:
                return bool(result["equal"])
            died = result.get("died")
            if died == signal.SIGPROF:
                raise PolicyFault(f"the answer took more than {self._seconds:g} s to compare")
            if died is None:
                raise PolicyFault(f"the answer can't be compared: {result['failed']}")
            ends.append(_Lost.by(died))
        if all(end.from_outside for end in ends):
            raise SystemFault(f"two workers of the verifier were lost: {ends[-1]}")
        raise PolicyFault(f"the answer broke two workers of the verifier: {ends[-1]}")

    def close(self) -> None:
        """End the workers; comparisons that run end with a SystemFault. A later one starts new workers."""
        with self._lock:
            self._closed += 1
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._idle.clear()
        _end(self._alive)

    def forget(self) -> None:
        """In a forked child: the workers are the parent's."""
        self._lock = threading.Lock()
        for worker in self._alive.values():
            worker.forget()
        self._idle.clear()
        self._alive.clear()
        self._threads = None

    def _check_open(self, closed: int) -> None:
        if closed != self._closed:
            raise SystemFault(_CLOSED)

    def _take(self, closed: int) -> _Worker:
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.process.poll() is None:
                    return worker
                self._alive.pop(worker.process.pid, None)
                worker.end()
        worker = _Worker(self._memory)
        with self._lock:
            self._alive[worker.process.pid] = worker
        try:
            self._check_open(closed)
        except SystemFault:
            self._drop(worker)
            raise
        return worker

    def _give_back(self, worker: _Worker) -> None:
        with self._lock:
            if worker.process.pid in self._alive:  # not closed meanwhile
                self._idle.append(worker)

    def _drop(self, worker: _Worker) -> None:
        with self._lock:
            self._alive.pop(worker.process.pid, None)
        worker.end()


class _Lost(Exception):
    """A worker died, or didn't get the processor; `from_outside`: of nothing that an answer can cause."""

    def __init__(self, reason: str, *, from_outside: bool) -> None:
        super().__init__(reason)
        self.from_outside = from_outside

    @classmethod
    def by(cls, number: int) -> _Lost:
        """For a signal that ended the worker or its child."""
        return cls(f"it died of {signal.Signals(number).name}", from_outside=number in _FROM_OUTSIDE)


class _Worker:
    """One process. Its start takes about a second; `ask` waits for it."""

    def __init__(self, memory: int) -> None:
        self._ready, self._buffer = False, b""
        try:
            # -P: the script's folder is no place to import from.
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-P", str(_SCRIPT), str(memory), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for the run; and one signal ends the worker and its child
            )
        except OSError as error:
            raise SystemFault(f"no worker of the verifier can be started: {error}") from error

    def ask(self, comparison: AnswerComparison, seconds: float, patience: float) -> Mapping[str, Any]:
        """The result of a comparison.

        Raises:
            _Lost: the worker died, or was silent for `patience` seconds.
            SystemFault: it can't start.
        """
        if not self._ready:
            first = self._line(_START_SECONDS)
            if "ready" not in first:
                raise SystemFault(f"a worker of the verifier can't start: {first.get('failed')}")
            self._ready = True
        self._discard()
        job = json.dumps(asdict(comparison) | {"seconds": seconds})
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(job.encode() + b"\n")
        except OSError:
            raise self._death() from None
        return self._line(patience)

    def _line(self, seconds: float) -> Mapping[str, Any]:
        assert self.process.stdout is not None
        output = self.process.stdout.fileno()
        poll, deadline = select.poll(), time.monotonic() + seconds
        poll.register(output, select.POLLIN)
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                log.warning(
                    "a worker of the verifier (process %d) has not answered for %.0f s: it is replaced",
                    self.process.pid,
                    seconds,
                )
                raise _Lost(f"no result in {seconds:.0f} s", from_outside=True)
            # Of a worker that was killed the child may hold the pipe open.
            if self.process.poll() is not None and not poll.poll(0):
                raise self._death()
            if poll.poll(min(left, 1.0) * 1000):
                part = os.read(output, 1 << 16)
                if not part:
                    raise self._death()
                self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        result: Mapping[str, Any] = json.loads(line)
        return result

    def _death(self) -> _Lost:
        try:
            code = self.process.wait(10)
        except subprocess.TimeoutExpired:
            return _Lost("its pipe broke", from_outside=True)
        if code >= 0 or not self._ready:
            return _Lost(f"it ended with code {code}", from_outside=not self._ready)
        return _Lost.by(-code)

    def _discard(self) -> None:
        """Drop what was written after the last result: that a child died which had nothing to do."""
        assert self.process.stdout is not None
        output, poll = self.process.stdout.fileno(), select.poll()
        poll.register(output, select.POLLIN)
        while poll.poll(0) and os.read(output, 1 << 16):
            pass
        self._buffer = b""

    def kill(self) -> None:
        """Kill the process and its child."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """Kill the process and its child, and close the pipes."""
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def forget(self) -> None:
        """Close this process's copies of the pipes; the worker is another process's child."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.returncode = 0  # so that nobody waits for it, and Python doesn't warn of it


def _end(workers: dict[int, _Worker]) -> None:
    while workers:
        _, worker = workers.popitem()
        worker.kill()  # a thread that waits for it closes its pipes


_verifiers: weakref.WeakSet[Verifier] = weakref.WeakSet()


def _forget_all() -> None:
    for verifier in list(_verifiers):
        verifier.forget()


os.register_at_fork(after_in_child=_forget_all)
