"""A process that compares answers with `math_verify`, one after another, until it is ended.

A script of its own: it imports nothing of Coterie. The start takes a second, for the import of sympy; so the
process itself compares nothing, and forks a child that does. Where an answer ends the child, the next child
is there in milliseconds.

The child reads one JSON object a line: a `Comparison` of `notation.py` and its `seconds`. It writes one,
`{"equal": true}` or `{"failed": "MemoryError"}`; for a child that a signal ended the process writes `{"died":
11}`. The first line of all is `{"ready": true}`.

The seconds are of processor time, measured by the kernel: a busy machine makes no answer late. Past them the
kernel ends the child with SIGPROF, in whatever code it is.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

Comparison = Callable[[str, str, Sequence[tuple[str, str]]], bool]


def main() -> None:
    memory, parent = int(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no result
    try:
        equal = _comparison()
    except Exception as error:
        _write(results, {"failed": f"{type(error).__name__}: {error}"})
        return
    _end_with(parent)
    _write(results, {"ready": True})
    while True:
        child = os.fork()
        if child == 0:
            _serve(equal, results)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            _write(results, {"died": os.WTERMSIG(status)})


def _serve(equal: Comparison, results: IO[str]) -> None:
    """Compare until an answer fails; then the process may be in any state, and a fresh one follows."""
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
    for line in sys.stdin:
        job = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, job["seconds"])
        try:
            result: dict[str, object] = {"equal": equal(job["reference"], job["answer"], job["sides"])}
        except BaseException as error:  # whatever an answer raises is a result
            result = {"failed": type(error).__name__}
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(results, result)
        if "failed" in result:
            os._exit(0)
    os.kill(os.getppid(), signal.SIGKILL)  # nobody writes any more
    os._exit(0)


def _comparison() -> Comparison:
    """`math_verify`, warm: its first comparison builds tables.

    It reads no box and no sentence, strips no unit and rounds nothing: what it is given has neither units nor
    decimals. What it takes as equal by 100 digits is looked at once more.
    """
    import math_verify
    from latex2sympy2_extended import NormalizationConfig, normalize_latex
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
    from math_verify.grader import should_treat_as_complex
    from sympy import UnevaluatedExpr

    logging.disable(logging.CRITICAL)  # it warns of every call without a time-out of its own
    spelling = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")
    meaning = ConversionConfig(lowercase_symbols=False)

    class LineReader(_Latex2Sympy):  # type: ignore[misc]
        """Reads `40(2)` as a product; without this it is a mixed number, 42."""

        def convert_postfix_list(self, arr: Any, i: int = 0) -> Any:
            value = super().convert_postfix_list(arr, i)
            return UnevaluatedExpr(value) if i and getattr(value, "is_Rational", False) else value

    def read(text: str, real: bool) -> Any:
        """The expression; None for what is none."""
        try:
            return LineReader(None, real, config=meaning).parse(normalize_latex(text, spelling))
        except (MemoryError, RecursionError):
            raise
        except Exception:
            return None

    def same(expected: Any, given: Any) -> bool:
        if expected is None or given is None or _rounds(expected) or _rounds(given):
            return False
        equal = math_verify.verify(
            expected, given, numeric_precision=100, allow_set_relation_comp=True, timeout_seconds=None
        )
        return bool(equal) and _close(expected, given)

    def equal(reference: str, answer: str, sides: Sequence[tuple[str, str]]) -> bool:
        real = not should_treat_as_complex(reference) and not should_treat_as_complex(answer)
        pairs = ((read(first, real), read(last, real)) for first, last in sides)
        return same(read(reference, real), read(answer, real)) and all(
            first is None or _variables(first) or same(last, first) for first, last in pairs
        )

    equal("1", r"\frac{2}{2}", [])
    return equal


def _rounds(expression: Any) -> bool:
    from sympy import Float

    return bool(getattr(expression, "atoms", lambda _: ())(Float))


def _variables(expression: Any) -> Any:
    return getattr(expression, "free_symbols", ())


def _close(expected: Any, given: Any) -> bool:
    """Whether two expressions agree to 40 digits, relative to their size; true of what has no value."""
    from sympy import Eq, Expr, Rational, Symbol, solve

    if isinstance(expected, Eq) and isinstance(given, Eq) and expected != given:
        # To math_verify all equations without solutions are equal.
        return bool(solve(expected, expected.free_symbols))
    if not (isinstance(expected, Expr) and isinstance(given, Expr)) or expected == given:
        return True
    if isinstance(expected, Symbol) or isinstance(given, Symbol):
        return True  # names
    symbols = sorted(_variables(expected) | _variables(given), key=str)
    point = {symbol: Rational(2 * index + 3, 7) for index, symbol in enumerate(symbols)}
    values = [expression.subs(point).doit() for expression in (expected, given)]
    if all(value.is_Rational for value in values):
        return bool(values[0] == values[1])
    values = [value.evalf(50) for value in values]
    if not all(value.is_number and value.is_finite for value in values):
        return True
    # A value of one bit is a zero that cancellation left over.
    first, second = (0 if getattr(value, "_prec", 0) == 1 else value for value in values)
    return bool(abs(first - second) <= Rational(1, 10**40) * max(abs(first), abs(second)))


def _write(results: IO[str], result: dict[str, object]) -> None:
    try:
        print(json.dumps(result), file=results, flush=True)
    except BrokenPipeError:
        os.killpg(0, signal.SIGKILL)


def _end_with(parent: int) -> None:
    """End this process and its child within a second of the run's, also where that was killed.

    By a signal and not by a thread: a process with threads should not fork.
    """

    def check(*_: object) -> None:
        if os.getppid() != parent:
            os.killpg(0, signal.SIGKILL)

    signal.signal(signal.SIGALRM, check)
    signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


if __name__ == "__main__":
    main()
