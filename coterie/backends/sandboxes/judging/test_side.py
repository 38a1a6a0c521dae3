"""The side of the judge that holds the tests. Sent into the sandbox: stdlib only.

The report goes to its own file descriptor, as lines of JSON: `{"total": n}` once the tests are read, then
the outcome. A report without an outcome says that this side was ended, and nothing has passed then.
"""

from __future__ import annotations

import builtins
import json
import os
import select
import signal
import sys
import time
import types
from typing import Any, NoReturn

from .asserts import NAME, Test, rewrite  # relative: there, this package is `judging`
from .plain import NotPlain, receive, send

CHANNEL, REPORT = 3, 4
FAILURES = 10
"""In a report: with at most `TEXT` characters of each text it stays below 64 KiB."""
TEXT = 300
AGAIN = 0.05
"""Seconds after which a test that swallowed the end of its time is told again."""


GONE = "ended"
"""The channel was closed: how the candidate ended is for whoever runs it to say."""
UNASKED = "it answered what was not asked"


class OutOfTime(BaseException):
    """The tests have used up their time."""


class CandidateEnded(BaseException):
    """The candidate has ended, or broken the protocol. No Exception, so no test takes it for its own."""


class NotPlainData(BaseException):
    """An argument or a result that can't cross."""


class Candidate:
    """The other side of the channel."""

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.lost = ""
        """Why no call can be made any more."""
        self.asked = False
        """Whether it owes an answer."""

    def ready(self) -> None:
        """Wait until it is loaded. Raises CandidateEnded."""
        if self._receive() != "ready":
            self._lose(UNASKED)

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call: its value, or its exception raised again as the builtin type nearest to it."""
        if self.lost:
            raise CandidateEnded(self.lost)
        nonce = os.urandom(16)  # an answer that comes late, twice or early knows another one
        if select.select([self.channel], [], [], 0)[0]:  # something is there before it was asked
            self._receive()
            self._lose(UNASKED)
        self._send((nonce, name, args, kwargs))
        reply = self._receive()
        if type(reply) is not tuple or len(reply) != 3 or reply[0] != nonce:
            self._lose(UNASKED)
        _, what, value = reply
        if what == "value":
            return value
        if what == "iterator" and type(value) is list:
            return iter(value)
        if what == "raised" and type(value) is tuple and len(value) == 2:
            raise _rebuilt(*value) from None
        raise NotPlainData(_cut(value))

    def _send(self, call: tuple[Any, ...]) -> None:
        self.asked = True
        try:
            send(self.channel, call)
        except NotPlain as error:
            raise NotPlainData(f"an argument of {call[1]}: {error}") from None
        except OSError:
            self._lose(GONE)

    def _receive(self) -> Any:
        self.asked = True
        try:
            answer = receive(self.channel)
        except (EOFError, OSError):
            self._lose(GONE)
        except (NotPlain, MemoryError) as error:
            self._lose(f"it broke the protocol: {error or 'out of memory'}")
        self.asked = False
        return answer

    def _lose(self, why: str) -> NoReturn:
        self.lost = why
        os.close(self.channel)
        raise CandidateEnded(why) from None


class Judge:
    """Keeps the score; the rewritten tests call it."""

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
        """The test raised what is being handled."""
        error = sys.exc_info()[1]
        self._fail(index, type(error).__name__, error)
        self._check_time()

    def outcome(self, ended: BaseException | None) -> dict[str, Any]:
        """The last line of the report. `ended`: what came out of the tests' code."""
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
            reached_the_place = ended is None and not self.candidate.lost
            if reached_the_place and (index in self._entered or not test.inside):
                return None
        elif index in self._held:
            return None
        why = self.over or (f"{type(ended).__name__}: {_text(ended)}" if ended is not None else "")
        return "NotReached", _cut(why)

    def _fail(self, index: int, error: str, message: object) -> None:
        self._failures.setdefault(index, (_cut(error), _cut(_text(message))))

    def _check_time(self) -> None:
        if self.over:
            raise OutOfTime(self.over)


def main(
    source: str, calls: list[str], cpu: float, wall: float, channel: int = CHANNEL, report: int = REPORT
) -> None:
    """Run the tests and write the report.

    Args:
        calls: names that are functions of the candidate.
        cpu, wall: seconds after which the tests are stopped: a little less than this process's limits, so
            that there is time to report.
    """
    _tell(report, {"started": True})
    try:
        code, tests = rewrite(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        _tell(report, {"total": 0, "unreadable": [line, "", type(error).__name__, _cut(_text(error))]})
        return
    _tell(report, {"total": len(tests)})
    candidate = Candidate(channel)
    judge = Judge(tests, candidate)
    ended = _run(code, judge, _names(calls, candidate), (cpu, wall))
    _tell(report, judge.outcome(ended))


def _names(calls: list[str], candidate: Candidate) -> dict[str, Any]:
    """What the tests see; `from solution import f` works too."""
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
    code: types.CodeType, judge: Judge, names: dict[str, Any], limits: tuple[float, float]
) -> BaseException | None:
    """What ended the tests before they were done, or None."""
    running = True

    def stop(number: int, frame: object) -> None:
        if running:
            judge.over = "the tests' CPU time is used up" if number == signal.SIGPROF else "time is up"
            if judge.candidate.asked and not judge.candidate.lost:
                judge.candidate.lost = "timeout"
            raise OutOfTime(judge.over)

    def leave(status: int = 0) -> None:
        raise SystemExit(status)

    really_leave = os._exit
    os._exit = leave  # type: ignore[assignment]  # a test that ends the process fails, the others count
    signal.signal(signal.SIGPROF, stop)
    signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_PROF, max(limits[0] - time.process_time(), AGAIN), AGAIN)
        signal.setitimer(signal.ITIMER_REAL, limits[1], AGAIN)
        judge.candidate.ready()
        exec(code, {**names, NAME: judge})
    except BaseException as error:
        running = False
        return error
    finally:
        running = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        os._exit = really_leave
    return None


def _rebuilt(name: object, args: object) -> BaseException:
    """The exception that a call raised."""
    kind = getattr(builtins, name, None) if type(name) is str else None
    if not (isinstance(kind, type) and issubclass(kind, BaseException)) or type(args) is not tuple:
        return Exception(_cut(args))
    if kind in (StopIteration, StopAsyncIteration, GeneratorExit):
        # Raised in `all(map(f, values))` it would end the loop and hold (PEP 479 does the same).
        return RuntimeError(f"{name}: {_cut(args)}")
    try:
        return kind(*args)
    except Exception:  # it wants other arguments
        return Exception(f"{name}: {_cut(args)}")


def _tell(report: int, line: dict[str, Any]) -> None:
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
