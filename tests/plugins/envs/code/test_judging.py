"""Verdicts: asked for once, never forged, and worst where a program ends its sandbox."""

from __future__ import annotations

import asyncio

import pytest

from coterie.backends.sandboxes.local import LocalSandbox
from coterie.core.errors import PolicyFault, SystemFault
from coterie.core.protocols import Limits, Verdict
from coterie.plugins.envs.code.judging import Judge, whole_program
from coterie.plugins.envs.code.problem import problem_of
from tests.plugins.envs.code.problems import ADD, ROOT, SHIFT, SUM_LINES


class Slow:
    """A sandbox whose verdicts wait for `release`."""

    def __init__(self, outcome=None):
        self.calls, self.outcome = 0, outcome or Verdict(passed=2, total=2)
        self.release = asyncio.Event()

    async def judge(self, judged):
        self.calls += 1
        await self.release.wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def verdicts(*programs, limits=None):
    """(record, program) -> verdicts of the local sandbox."""

    async def go():
        sandbox = LocalSandbox(LocalSandbox.Config(workers=2), None)
        await sandbox.open()
        try:
            judge = Judge(sandbox, limits)
            asked = []
            for record, code in programs:
                problem = problem_of(record)
                asked.append(judge.judge(problem, whole_program(problem, code), problem.tests))
            return await asyncio.gather(*asked)
        finally:
            await sandbox.close()

    return asyncio.run(go())


def test_references_pass_and_faults_fail():
    """Asserts in loops, `check(candidate)`, helpers and imports of the prompt, floats, stdin and stdout."""
    records = (ADD, SHIFT, ROOT, SUM_LINES)
    right = verdicts(*((record, record["solution"]) for record in records))
    assert all(verdict.ok for verdict in right), right
    nothing = "def {}(*values):\n    return None\n"
    wrong = verdicts(
        *((record, nothing.format(record["entry_point"])) for record in records[:3]), (SUM_LINES, "print(1)")
    )
    assert not any(verdict.ok for verdict in wrong)


def test_a_program_can_t_change_the_helpers_that_its_tests_call():
    cheat = "def decode(s):\n    return s\n\ndef encode(s):\n    return s\n"
    (verdict,) = verdicts((SHIFT, cheat))
    assert not verdict.ok


def test_a_program_that_ends_itself_fails_its_tests_and_nothing_else():
    limits = Limits(cpu_seconds=1)
    hostile = [
        "exit()",
        "while True:\n    pass",
        "import os\nos._exit(0)",
        "raise SystemExit",
        "x = [1] * 10**10",
    ]
    programs = [(ADD, f"{line}\n{ADD['solution']}") for line in hostile]
    inside = [
        (ADD, f"def f(x, y):\n    {line.splitlines()[0]}{' pass' * ('while' in line)}\n")
        for line in hostile[:1]
    ]
    results = verdicts(*programs, *inside, (ADD, ADD["solution"]), limits=limits)
    assert [verdict.ok for verdict in results] == [False] * 6 + [True]


def test_what_ends_one_test_and_what_ends_the_rest():
    """An endless loop takes the rest of the time; an exit and a deep recursion cost one test."""
    record = {**ADD, "tests": "".join(f"assert f({n}, 0) == {n * n}\n" for n in (1, 2, 3, 4))}
    bodies = ["exit()", "return f(x, y)", "raise KeyError", "while True: pass"]
    programs = [
        (record, f"def f(x, y):\n    if x == {n}:\n        {body}\n    return x * x + y * y\n")
        for body in bodies
        for n in (1, 4)
    ]
    passed = [verdict.passed for verdict in verdicts(*programs, limits=Limits(cpu_seconds=1))]
    assert passed == [3, 3, 3, 3, 3, 3, 0, 3]


def test_equal_programs_are_judged_once_also_at_the_same_time():
    async def go():
        sandbox, problem = Slow(), problem_of(ADD)
        judge = Judge(sandbox)
        asked = [asyncio.ensure_future(judge.judge(problem, "a", problem.tests)) for _ in range(3)]
        other = asyncio.ensure_future(judge.judge(problem, "b", problem.tests))
        await asyncio.sleep(0)
        sandbox.release.set()
        await asyncio.gather(*asked, other)
        await judge.judge(problem, "a", problem.tests)
        return sandbox.calls, judge.counted(), judge.counted()

    calls, counts, later = asyncio.run(go())
    assert calls == 2
    assert (counts["judging/programs"], counts["judging/repeated"]) == (2, 3)
    assert counts["judging/seconds"] >= 0 and not later.get("judging/programs")


def test_a_fault_of_the_sandbox_is_asked_again():
    async def go():
        sandbox, problem = Slow(SystemFault("down")), problem_of(ADD)
        sandbox.release.set()
        judge = Judge(sandbox)
        with pytest.raises(SystemFault):
            await judge.judge(problem, "a", problem.tests)
        sandbox.outcome = Verdict(passed=2, total=2)
        return (await judge.judge(problem, "a", problem.tests)).ok, sandbox.calls

    assert asyncio.run(go()) == (True, 2)


def test_who_is_cancelled_cancels_nobody_else():
    async def go():
        sandbox, problem = Slow(), problem_of(ADD)
        judge = Judge(sandbox)
        first = asyncio.ensure_future(judge.judge(problem, "a", problem.tests))
        second = asyncio.ensure_future(judge.judge(problem, "a", problem.tests))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        sandbox.release.set()
        return (await second).ok, first.cancelled()

    assert asyncio.run(go()) == (True, True)


def test_a_program_that_kills_its_sandbox_twice_has_the_worst_verdict():
    async def go():
        sandbox, problem = Slow(PolicyFault("a program ended its worker twice")), problem_of(ADD)
        sandbox.release.set()
        return await Judge(sandbox).judge(problem, "a", problem.tests)

    verdict = asyncio.run(go())
    assert (verdict.passed, verdict.total, verdict.failures[0].error) == (0, 2, "Killed")
