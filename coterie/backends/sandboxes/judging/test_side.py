"""The tests' side of the judge. Sent into the sandbox: stdlib only.

The report goes to a separate file descriptor, as lines of JSON: `{"total": n}` once the tests are read, then
the outcome. A report without an outcome means that this side ended early; then nothing has passed.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import select
import signal
import sys
import time
import types
from _thread import RLock
from typing import Any, NoReturn

from .asserts import NAME, Test, rewrite  # relative: in the sandbox, the package is `judging`
from .changes import apply, containers, numbered
from .plain import NotPlain, frame, missing, pack, unpack

CHANNEL, REPORT = 3, 4
FAILURES = 10
"""Most failures in a report: with at most `TEXT` characters per text it is below 64 KiB."""
TEXT = 300
AGAIN = 0.05
"""Seconds after which the time-out is raised again in a test that suppressed it."""


GONE = "ended"
"""The candidate closed the channel; the sandbox that runs it knows how it ended."""
UNREQUESTED = "it answered what was not asked"
_SIGNALS = (signal.SIGALRM, signal.SIGPROF, signal.SIGVTALRM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals whose handlers can raise in the middle of a call."""
_sigmask: Any = importlib.import_module("_signal").pthread_sigmask
"""What `signal` wraps in code that makes enums; each call of the candidate changes the mask."""
_CHUNK = 1 << 15
"""Bytes that a socket takes without waiting, once it takes any."""
_LOOK = 0.5
"""Seconds between two looks whether another thread has lost the candidate."""


class OutOfTime(BaseException):
    """The tests have used up their time."""


class CandidateEnded(BaseException):
    """The candidate has ended, or broken the protocol. Not an Exception, so that tests don't catch it."""


class NotPlainData(BaseException):
    """An argument or a result that can't cross the channel."""


class Candidate:
    """The other side of the channel. It answers one call after the other, of any thread.

    A handler of the tests (SIGALRM) may end a call by an exception; its answer is read before the next call.
    """

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.lost = ""
        """Why no more calls can be made; empty: they can."""
        self.awaited = False
        """Whether a call waits for an answer."""
        self.deadline: float | None = None
        """The time.monotonic() at which time is up; the tests may use the timer that says so too."""
        self._lock = RLock()
        self._calling = False
        self._unmasked: set[Any] = set()
        self._pending: bytes | None = None
        """The nonce of a call that was sent and whose answer was not read."""
        self._held = bytearray()
        """What was read of the next answer."""

    def ready(self) -> None:
        """Wait until the candidate is loaded. Raises CandidateEnded."""
        with self:
            if self._receive() != "ready":
                self._lose(UNREQUESTED)

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make one call: return its value, or raise its exception as the nearest builtin type.

        What it changes in an argument is changed in the argument.
        """
        with self._lock:
            if self._calling:
                raise NotPlainData(f"{name}: a signal's handler calls it during another call")
            with self:
                return self._call(name, args, kwargs)

    def __enter__(self) -> None:
        """Let signals' handlers run, and raise, only where this waits."""
        self._unmasked = _sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._calling = True

    def __exit__(self, *_: object) -> None:
        self._calling = False
        _sigmask(signal.SIG_SETMASK, self._unmasked)

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.lost:
            raise CandidateEnded(self.lost)
        if self._pending is not None:
            self._reply(self._pending)
        nonce = os.urandom(16)  # a late, repeated or early answer has another nonce
        if self._held or select.select([self.channel], [], [], 0)[0]:  # bytes arrived before the call
            self._receive()
            self._lose(UNREQUESTED)
        self._send((nonce, name, args, kwargs))
        passed = containers([*args, *kwargs.values()])  # no endless ones: they were packed
        kind, value, changes = self._reply(nonce)
        try:
            apply(changes, passed)
            if kind == "argument":
                return numbered(value, passed)
        except NotPlain as error:
            self._lose(f"it broke the protocol: {error}")
        if kind == "value":
            return value
        if kind == "iterator" and type(value) is list:
            return iter(value)
        if kind == "raised" and type(value) is tuple and len(value) == 2:
            raise _rebuilt(*value) from None
        raise NotPlainData(_cut(value))

    def _send(self, call: tuple[Any, ...]) -> None:
        try:
            data = pack(call, factories=True)
        except NotPlain as error:
            raise NotPlainData(f"an argument of {call[1]}: {error}") from None
        self.awaited = True
        self._pending = call[0]
        rest = memoryview(frame(data))
        try:
            while rest:
                self._wait(writing=True)
                rest = rest[os.write(self.channel, rest[:_CHUNK]) :]
        except (BrokenPipeError, ConnectionResetError):
            self._lose(GONE)
        except BaseException:  # of a signal's handler; half a call can't be taken back
            self.lost = self.lost or "a call was stopped while it was sent"
            raise

    def _reply(self, nonce: bytes) -> tuple[Any, Any, Any]:
        """Kind, value and changes of the answer to a call."""
        reply = self._receive()
        if type(reply) is not tuple or len(reply) != 4 or reply[0] != nonce:
            self._lose(UNREQUESTED)
        return reply[1:]

    def _receive(self) -> Any:
        self.awaited = True
        try:
            while (count := missing(self._held)) > 0:
                self._wait()
                self._held += self._read(count)
            answer = unpack(bytes(self._held[4 : len(self._held) + count]))
        except (NotPlain, MemoryError) as error:
            self._lose(f"it broke the protocol: {error or 'out of memory'}")
        del self._held[: len(self._held) + count]
        self._pending = None
        self.awaited = False
        return answer

    def _read(self, count: int) -> bytes:
        try:
            part = os.read(self.channel, max(count, _CHUNK))
        except OSError:
            part = b""
        if not part:
            self._lose(GONE)
        return part

    def _wait(self, *, writing: bool = False) -> None:
        """Wait until the channel is ready; here alone signals' handlers may raise."""
        ends = ([], [self.channel]) if writing else ([self.channel], [])
        masked = _sigmask(signal.SIG_SETMASK, self._unmasked)
        try:
            left = _LOOK
            while not any(select.select(*ends, [], left)):
                if self.deadline is not None:
                    left = max(0.0, min(_LOOK, self.deadline - time.monotonic()))
                if not left:
                    self.lost = self.lost or "timeout"
                if self.lost:
                    raise CandidateEnded(self.lost)
        finally:
            _sigmask(signal.SIG_SETMASK, masked)

    def _lose(self, why: str) -> NoReturn:
        self.lost = why
        os.close(self.channel)
        raise CandidateEnded(why) from None


class OutcomeRecord:
    """Records outcomes; the rewritten tests call it."""

    def __init__(self, tests: list[Test], candidate: Candidate) -> None:
        self.tests = tests
        self.candidate = candidate
        self.over = ""
        self._held: set[int] = set()
        self._entered: set[int] = set()
        self._failures: dict[int, tuple[str, str]] = {}

    def entered(self, index: int) -> None:
        self._entered.add(index)

    def held(self, index: int) -> None:
        self._check_time()
        if self.candidate.lost:
            self._fail(index, "CandidateEnded", self.candidate.lost)
        self._held.add(index)

    def failed(self, index: int, message: object = "") -> None:
        self._fail(index, "AssertionError", message)

    def raised(self, index: int) -> None:
        """Record that the test raised the exception that is being handled."""
        error = sys.exc_info()[1]
        self._fail(index, type(error).__name__, error)
        self._check_time()

    def outcome(self, ended: BaseException | None) -> dict[str, Any]:
        """The last line of the report. `ended`: the exception that ended the tests' code."""
        failures: list[list[Any]] = []
        passed = 0
        for index, test in enumerate(self.tests):
            error = self._failures.get(index) or self._unreached(index, test, ended)
            if error is None:
                passed += 1
            elif len(failures) < FAILURES:
                failures.append([test.line, _cut(test.source), *error])
        return {"passed": passed, "failures": failures, "lost": _cut(self.candidate.lost)}

    def _unreached(self, index: int, test: Test, ended: BaseException | None) -> tuple[str, str] | None:
        if test.forbidden:
            ran_to_the_end = ended is None and not self.candidate.lost
            if ran_to_the_end and (index in self._entered or not test.inside):
                return None
        elif index in self._held:
            return None
        why = self.over or (f"{type(ended).__name__}: {_text(ended)}" if ended is not None else "")
        return "NotReached", _cut(why)

    def _fail(self, index: int, error: str, message: object) -> None:
        self._failures.setdefault(index, (_cut(error), _cut(_text(message))))

    def _check_time(self) -> None:
        late = self.candidate.deadline is not None and time.monotonic() > self.candidate.deadline
        if late and not self.over:  # the tests use the timer for something else
            self.over = "time is up"
        if self.over:
            raise OutOfTime(self.over)


def main(
    source: str, calls: list[str], cpu: float, wall: float, channel: int = CHANNEL, report: int = REPORT
) -> None:
    """Run the tests and write the report.

    Args:
        calls: names of the candidate's functions.
        cpu, wall: seconds after which the tests are stopped; a little less than this process's limits, so
            that there is time to report.
    """
    _write_line(report, {"started": True})
    try:
        code, tests = rewrite(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        _write_line(report, {"total": 0, "unreadable": [line, "", type(error).__name__, _cut(_text(error))]})
        return
    _write_line(report, {"total": len(tests)})
    candidate = Candidate(channel)
    judge = OutcomeRecord(tests, candidate)
    ended = _run(code, judge, _names(calls, candidate), (cpu, wall))
    _write_line(report, judge.outcome(ended))


def _names(calls: list[str], candidate: Candidate) -> dict[str, Any]:
    """The tests' global names; `from solution import f` works too."""
    proxies = {name: _proxy(name, candidate) for name in calls}
    module = types.ModuleType("solution")
    module.__dict__.update(proxies)
    sys.modules["solution"] = module
    return {"__name__": "__main__", "__builtins__": builtins, **proxies}


def _proxy(name: str, candidate: Candidate) -> Any:
    def proxy(*args: Any, **kwargs: Any) -> Any:
        return candidate.call(name, args, kwargs)

    proxy.__name__ = proxy.__qualname__ = name
    return proxy


def _run(
    code: types.CodeType, judge: OutcomeRecord, names: dict[str, Any], limits: tuple[float, float]
) -> BaseException | None:
    """Run the tests; the exception that ended them early, or None."""
    running = True

    def stop(number: int, frame: object) -> None:
        if running:
            judge.over = "the tests' CPU time is used up" if number == signal.SIGPROF else "time is up"
            if judge.candidate.awaited and not judge.candidate.lost:
                judge.candidate.lost = "timeout"
            raise OutOfTime(judge.over)

    def leave(status: int = 0) -> None:
        raise SystemExit(status)

    original_exit = os._exit
    os._exit = leave  # type: ignore[assignment]  # a test that ends the process fails; the others still count
    signal.signal(signal.SIGPROF, stop)
    signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_PROF, max(limits[0] - time.process_time(), AGAIN), AGAIN)
        signal.setitimer(signal.ITIMER_REAL, limits[1], AGAIN)
        judge.candidate.deadline = time.monotonic() + limits[1] + AGAIN
        judge.candidate.ready()
        exec(code, {**names, NAME: judge})
    except BaseException as error:
        running = False
        return error
    finally:
        running = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        os._exit = original_exit
    return None


def _rebuilt(name: object, args: object) -> BaseException:
    """The exception of a call, rebuilt as a builtin type."""
    kind = getattr(builtins, name, None) if type(name) is str else None
    if not (isinstance(kind, type) and issubclass(kind, BaseException)) or type(args) is not tuple:
        return Exception(_cut(args))
    if kind in (StopIteration, StopAsyncIteration, GeneratorExit):
        # Raised in `all(map(f, values))`, it would end the loop and the test would hold (compare PEP 479).
        return RuntimeError(f"{name}: {_cut(args)}")
    try:
        return kind(*args)
    except Exception:  # the type needs other arguments
        return Exception(f"{name}: {_cut(args)}")


def _write_line(report: int, line: dict[str, Any]) -> None:
    text = json.dumps(line, ensure_ascii=False) + "\n"
    data = memoryview(text.encode("utf-8", "replace"))
    while data:
        data = data[os.write(report, data) :]


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _cut(value: object) -> str:
    text = _text(value)
    return text if len(text) <= TEXT else text[: TEXT - 1] + "…"
