"""Verdicts on programs that read stdin and write stdout, as online judges give them."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from coterie.core.concurrency.active_rollouts import together
from coterie.core.errors import ConfigError, type_text
from coterie.core.protocols import Limits, Program, Ran, Sandbox, TestFailure, Verdict

MOST_BYTES = 16 << 20
"""Sandboxes kill a program that writes more to a stream."""

_Fault = tuple[str, str] | None
"""Kind and message of what is wrong with a run."""
_SPACE = " \t\r\f\v"
_SHOWN = 60
_SLACK_KB = 64
"""Kept of a program's output beyond twice the expected text, since white space doesn't count."""


async def judge_outputs(
    sandbox: Sandbox,
    program: str | Program,
    cases: Iterable[tuple[str, str]],
    *,
    tolerance: float = 0.0,
    stop_at_first: bool = False,
) -> Verdict:
    """Run a program once for each pair (stdin, expected stdout), and compare what it prints.

    White space at the ends of lines and empty lines at the end don't count; all else must be equal, and the
    exit code 0. The whole output is compared: of each run at least twice the expected text and 64 KB are
    kept, whatever `limits.output_kb`. The runs are concurrent, as far as the sandbox allows.

    Args:
        program: Python source, or a Program whose `stdin` is replaced.
        tolerance: words that are decimal numbers, within a float's range, may differ by this much, absolutely
            or relatively, e.g. 1e-6. `nan` equals `nan` in any case; other words are compared as text.
        stop_at_first: run one case after the other, and none after one that failed.

    Returns:
        A verdict with a failure for each case that failed: its number from 1 as `line`, its stdin as
        `source`, and as `error` WrongAnswer, RuntimeError, TimeLimitExceeded, OutputLimit (more output than
        is kept) or Killed. `stdout` and `stderr` are those of the first such case. Without cases it has the
        failure NoTests.

    Raises:
        ConfigError: a case isn't two texts, an expected stdout is longer than what programs may write, or the
            program can't be run.
        SystemFault: the sandbox failed.
        PolicyFault: the program killed its sandbox twice.
    """
    base = Program(code=program) if isinstance(program, str) else program
    pairs = _checked(base, cases, tolerance)
    limits = base.limits or getattr(getattr(sandbox, "config", None), "limits", None)
    programs = [
        dataclasses.replace(base, stdin=stdin, limits=_roomy(limits, expected)) for stdin, expected in pairs
    ]
    results = await (_until_one_fails if stop_at_first else _all)(sandbox, programs, pairs, tolerance)
    failed = [
        (TestFailure(line=number, source=_cut(stdin), error=fault[0], message=fault[1]), ran)
        for number, ((ran, fault), (stdin, _)) in enumerate(zip(results, pairs, strict=False), 1)
        if fault is not None
    ]
    if not pairs:
        return Verdict(
            passed=0, total=0, failures=(TestFailure(line=1, source="", error="NoTests", message="no cases"),)
        )
    return Verdict(
        passed=len(results) - len(failed),
        total=len(pairs),
        failures=tuple(failure for failure, _ in failed),
        stdout=_kept(failed[0][1].stdout, limits) if failed else "",
        stderr=_kept(failed[0][1].stderr, limits) if failed else "",
    )


def _roomy(limits: Limits | None, expected: str) -> Limits | None:
    """The limits with an `output_kb` at which the right output is kept whole; None if there are none."""
    needed = -(-2 * _size(expected) // 1024) + _SLACK_KB
    if limits is None or limits.output_kb >= needed:
        return limits
    return limits.model_copy(update={"output_kb": needed})


def _kept(text: str, limits: Limits | None) -> str:
    """The end of an output, of the size that the program's own limits keep."""
    return text if limits is None else text[-(limits.output_kb << 10) :]


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


async def _until_one_fails(
    sandbox: Sandbox, programs: Sequence[Program], pairs: Sequence[tuple[str, str]], tolerance: float
) -> list[tuple[Ran, _Fault]]:
    """The runs up to the first that failed, and their faults."""
    results: list[tuple[Ran, _Fault]] = []
    for program, (_, expected) in zip(programs, pairs, strict=True):
        ran = await sandbox.run(program)
        results.append((ran, _fault(ran, program.limits, expected, tolerance)))
        if results[-1][1] is not None:
            break
    return results


async def _all(
    sandbox: Sandbox, programs: Sequence[Program], pairs: Sequence[tuple[str, str]], tolerance: float
) -> list[tuple[Ran, _Fault]]:
    """All runs and their faults; if one run raises, the others are cancelled."""
    results = await together(sandbox.run(program) for program in programs)
    return [
        (ran, _fault(ran, program.limits, expected, tolerance))
        for ran, program, (_, expected) in zip(results, programs, pairs, strict=True)
    ]


def _checked(program: Any, cases: Any, tolerance: Any) -> list[tuple[str, str]]:
    """The cases. Raises ConfigError where something is of another form."""
    if not isinstance(program, Program):
        raise ConfigError(f"a program that is {type_text(program)}", fix="a str of Python, or a Program")
    if not isinstance(tolerance, (int, float)) or not math.isfinite(tolerance) or tolerance < 0:
        shown = _cut(repr(tolerance))
        raise ConfigError(f"a tolerance of {shown}", fix="a number that is not negative, e.g. 1e-6")
    if isinstance(cases, str) or not isinstance(cases, Iterable):
        raise ConfigError(f"cases that are {type_text(cases)}", fix="pairs of stdin and expected stdout")
    pairs = list(cases)
    for number, pair in enumerate(pairs, 1):
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(x, str) for x in pair)):
            raise ConfigError(
                f"case {number} is {_cut(repr(pair))}", fix="a pair of texts: stdin and expected stdout"
            )
        size = _size(pair[1])
        if size > MOST_BYTES:
            raise ConfigError(
                f"case {number} expects {size} bytes of stdout",
                why=f"a program that writes more than {MOST_BYTES} bytes is killed",
                fix="a case with less output",
            )
    return pairs


def _fault(ran: Ran, limits: Limits | None, expected: str, tolerance: float) -> _Fault:
    """(kind of error, message) of a run; None if it passed."""
    if ran.status == "timeout":
        return "TimeLimitExceeded", ran.reason
    if ran.status == "killed":
        return "Killed", ran.reason
    if ran.status == "failed":
        last = ran.stderr.rstrip().rpartition("\n")[2]
        return (
            "RuntimeError",
            f"exit code {ran.exit_code}: {_cut(last)}" if last else f"exit code {ran.exit_code}",
        )
    # `dropped` counts both streams. Text that was decoded is at least as long as the bytes were.
    if ran.dropped and (limits is None or _size(ran.stdout) >= limits.output_kb << 10):
        wrote = f"it wrote {_size(ran.stdout) + ran.dropped} bytes, more than are kept"
        return "OutputLimit", f"{wrote}; {_size(expected)} were expected"
    actual, wanted = _lines(ran.stdout), _lines(expected)
    for number, (line, right) in enumerate(zip(actual, wanted, strict=False), 1):
        if line != right and not (tolerance and _close(line, right, tolerance)):
            return "WrongAnswer", f"line {number}: {_cut(line)!r}, not {_cut(right)!r}"
    if len(actual) != len(wanted):
        return "WrongAnswer", f"{len(actual)} lines, not {len(wanted)}"
    return None


def _lines(text: str) -> list[str]:
    """The lines without white space at their ends, and without empty lines at the end."""
    lines = [line.rstrip(_SPACE) for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _close(line: str, right: str, tolerance: float) -> bool:
    words, wanted = line.split(), right.split()
    if len(words) != len(wanted):
        return False
    return all(
        word == other or _numbers_close(word, other, tolerance)
        for word, other in zip(words, wanted, strict=True)
    )


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def _numbers_close(word: str, other: str, tolerance: float) -> bool:
    """Whether two words are numbers that a float can hold, and close; or both `nan`, in any case."""
    if not (_NUMBER.fullmatch(word) and _NUMBER.fullmatch(other)):
        return word.lower() == other.lower() == "nan"
    left, right = float(word), float(other)
    finite = math.isfinite(left) and math.isfinite(right)
    return finite and math.isclose(left, right, rel_tol=tolerance, abs_tol=tolerance)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
