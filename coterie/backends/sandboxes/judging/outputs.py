"""Verdicts on programs that read stdin and write stdout, as online judges give them."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from coterie.core.errors import ConfigError
from coterie.core.protocols import Limits, Program, Ran, Sandbox, TestFailure, Verdict

_SPACE = " \t\r\f\v"
_SHOWN = 60


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
    exit code 0. The runs are concurrent, as far as the sandbox allows.

    Args:
        program: Python source, or a Program whose `stdin` is replaced.
        tolerance: words that are numbers may differ by this much, absolutely or relatively, e.g. 1e-6.
        stop_at_first: run one case after the other, and none after one that failed.

    Returns:
        A verdict with a failure for each case that failed: its number from 1 as `line`, its stdin as
        `source`, and as `error` WrongAnswer, RuntimeError, TimeLimitExceeded or Killed. `stdout` and `stderr`
        are those of the first such case. Without cases it has the failure NoTests.

    Raises:
        ConfigError: a case isn't two texts, an expected stdout is longer than what the limits keep, or the
            program can't be run.
        SystemFault: the sandbox failed.
        PolicyFault: the program killed its sandbox twice.
    """
    base = Program(code=program) if isinstance(program, str) else program
    pairs = list(cases)
    _check(pairs, base.limits or getattr(getattr(sandbox, "config", None), "limits", None) or Limits())
    if not math.isfinite(tolerance) or tolerance < 0:
        raise ConfigError(f"a tolerance of {tolerance}", fix="a number that is not negative, e.g. 1e-6")
    results = []
    if stop_at_first:
        for stdin, expected in pairs:
            results.append(await sandbox.run(dataclasses.replace(base, stdin=stdin)))
            if _fault(results[-1], expected, tolerance) is not None:
                break
    else:
        results = await _all(sandbox, [dataclasses.replace(base, stdin=stdin) for stdin, _ in pairs])
    failed = []
    for number, (ran, (stdin, expected)) in enumerate(zip(results, pairs, strict=False), 1):
        fault = _fault(ran, expected, tolerance)
        if fault is not None:
            error, message = fault
            failed.append((TestFailure(line=number, source=_cut(stdin), error=error, message=message), ran))
    if not pairs:
        return Verdict(
            passed=0, total=0, failures=(TestFailure(line=1, source="", error="NoTests", message="no cases"),)
        )
    return Verdict(
        passed=len(results) - len(failed),
        total=len(pairs),
        failures=tuple(failure for failure, _ in failed),
        stdout=failed[0][1].stdout if failed else "",
        stderr=failed[0][1].stderr if failed else "",
    )


async def _all(sandbox: Sandbox, programs: Sequence[Program]) -> list[Ran]:
    """Run all; if one run raises, the others are cancelled."""
    tasks = [asyncio.ensure_future(sandbox.run(program)) for program in programs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _check(pairs: Sequence[Any], limits: Limits) -> None:
    for number, pair in enumerate(pairs, 1):
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(x, str) for x in pair)):
            raise ConfigError(
                f"case {number} is {_cut(repr(pair))}", fix="a pair of texts: stdin and expected stdout"
            )
        size = len(pair[1].encode("utf-8", "surrogatepass"))
        if size > limits.output_kb << 10:
            raise ConfigError(
                f"case {number} expects {size} bytes of stdout",
                why=f"of a program's output {limits.output_kb} KB are kept",
                fix=f"set output_kb to {-(-size // 1024)} or more",
                path="limits.output_kb",
            )


def _fault(ran: Ran, expected: str, tolerance: float) -> tuple[str, str] | None:
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


def _numbers_close(word: str, other: str, tolerance: float) -> bool:
    try:
        return math.isclose(float(word), float(other), rel_tol=tolerance, abs_tol=tolerance)
    except ValueError:
        return False


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
