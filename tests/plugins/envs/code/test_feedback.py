"""Findings on a team's function in sentences."""

from __future__ import annotations

from coterie.core.protocols import TestFailure, Verdict
from coterie.core.types import Finding
from coterie.plugins.envs.code import feedback
from coterie.plugins.envs.code.problem import problem_of
from coterie.plugins.envs.code.state import JudgedWork
from tests.plugins.envs.code.problems import ADD


def test_remarks_are_no_failures():
    parts = [
        Finding(name="aux", passed=True, summary="aux found"),
        Finding(name="usage", passed=None, summary="used", details=("Use of aux: not called",)),
        Finding(name="tests", passed=False, summary="none", details=("Tests: 0/1 passed", "  Failed: x")),
        Finding(name="size", passed=False, summary="too long"),
        Finding(name="thin", passed=None, details=("Warning: a mere call",)),
    ]
    assert feedback.sentences(parts) == "Tests: 0/1 passed\n  Failed: x\ntoo long"
    assert feedback.sentences([part for part in parts if part.passed is not False]) == ""


def test_a_right_function_with_a_remark_has_no_diagnosis():
    verdict = Verdict(passed=2, total=2)
    work = JudgedWork(
        program="", written=True, aux=True, main=True, excess=0, error="", verdict=verdict, visible=verdict,
        called=False, thin=False, ignored=(),
    )  # fmt: skip
    found = feedback.findings(problem_of(ADD), work, verdict, "main", helped=True)
    assert [finding.name for finding in found if finding.passed is None] == ["usage"]
    assert feedback.sentences(found) == ""


def test_without_its_failures_a_verdict_says_how_many_tests_passed():
    failure = TestFailure(line=1, source="assert f(1) == 2", error="AssertionError")
    (shown, hidden) = (
        feedback.tests_finding(Verdict(passed=1, total=2, failures=failures)) for failures in ((failure,), ())
    )
    assert shown.details == ("Tests: 1/2 passed", "  Failed: assert f(1) == 2 -> AssertionError")
    assert hidden.details[0] == shown.details[0] and "f(1)" not in " ".join(hidden.details)
    assert (hidden.passed, hidden.summary) == (shown.passed, shown.summary)
