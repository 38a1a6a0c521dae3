"""Findings on a team's function, for transition modes, and the same in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.core.protocols import TestFailure, Verdict
from coterie.core.types import Finding
from coterie.plugins.envs.code.entry import AUX
from coterie.plugins.envs.code.problem import CodeProblem
from coterie.plugins.envs.code.state import JudgedWork

_SHOWN = 200
"""Characters of a failed test and of its message."""


def findings(
    problem: CodeProblem, work: JudgedWork, verdict: Verdict, role: str, *, helped: bool
) -> tuple[Finding, ...]:
    """What is known of the team's function, the role's own part first.

    Args:
        verdict: of the tests that feedback may tell of.
        helped: whether the team has a role that writes `aux`.
    """
    main = [definition("main", problem.entry_point, work.main)]
    if work.excess and problem.size_limit is not None:
        summary = f"Size of {problem.entry_point}: too long"
        detail = f"{summary}, {work.excess} characters over its limit of {problem.size_limit}"
        main.append(Finding(name="size", passed=False, summary=summary, details=(detail,)))
    aux = [definition(AUX, AUX, work.aux)] if helped else []
    parts = [*aux, *main] if role == AUX else [*main, *aux]
    usage = _usage(work) if helped and role != AUX and work.main else []
    return (*parts, syntax(work.error), tests_finding(verdict), *usage)


def sentences(parts: Sequence[Finding]) -> str:
    """Those that did not pass, in detail; empty: all did."""
    lines = [
        line
        for finding in parts
        if finding.passed is False
        for line in (finding.details or (finding.summary,))
    ]
    return "\n".join(lines)


def definition(name: str, function: str, defined: bool) -> Finding:
    """Whether a function is defined."""
    state = "FOUND" if defined else "MISSING"
    detail = f"Definition of {function}: {state}"
    if not defined:
        detail += f" (there is no function {function} that returns something)"
    summary = f"Definition of {function}: {'found' if defined else 'not found'}"
    return Finding(name=name, passed=defined, summary=summary, details=(detail,))


def syntax(error: str) -> Finding:
    """Whether a program parses.

    Args:
        error: why it doesn't; empty: it does.
    """
    if not error:
        return Finding(name="syntax", passed=True, summary="Syntax: correct", details=("Syntax: OK",))
    detail = f"Syntax: ERROR, {error}"
    return Finding(name="syntax", passed=False, summary="Syntax: incorrect", details=(detail,))


def tests_finding(verdict: Verdict) -> Finding:
    """How many tests passed, and those that did not."""
    passed, total = verdict.passed, verdict.total
    if not total:
        return Finding(name="tests", passed=False, summary="Tests: there are none")
    if passed == total:
        summary = f"Tests: all {total} passed"
    elif passed:
        summary = f"Tests: {passed} of {total} passed"
    else:
        summary = f"Tests: none of {total} passed"
    details = [f"Tests: {passed}/{total} passed"]
    details += [_failure(failure, verdict.candidate) for failure in verdict.failures]
    left = total - passed - len(verdict.failures)
    if left > 0 and verdict.failures:
        details.append(f"  ... and {left} more failed")
    return Finding(name="tests", passed=passed == total, summary=summary, details=tuple(details))


def _failure(failure: TestFailure, ended: str) -> str:
    """A failed test.

    Args:
        ended: how the program ended, where it did.
    """
    message = ended if failure.error == "CandidateEnded" and ended else failure.message
    what = failure.error + (f": {_cut(message)}" if message else "")
    return f"  Failed: {_cut(failure.source)} -> {what}" if failure.source else f"  Failed: {what}"


def _usage(work: JudgedWork) -> list[Finding]:
    if not work.called:
        state, detail = "not called", "not called"
    elif work.ignored:
        state, detail = "called, its result is not used", f"called but misused ({'; '.join(work.ignored)})"
    elif work.thin:
        state, detail = "called, and nothing else is done", "called, and its result is returned as it is"
    else:
        state, detail = "called, its result is used", "its result is used"
    usage = Finding(
        name="usage", passed=None, summary=f"Use of aux: {state}", details=(f"Use of aux: {detail}",)
    )
    warning = "Warning: the function does nothing but call aux"
    return [usage, Finding(name="thin", passed=None, details=(warning,))] if work.thin else [usage]


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"
