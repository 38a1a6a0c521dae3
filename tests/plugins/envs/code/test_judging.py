"""Verdicts: asked for once, never forged, and worst where a program ends its sandbox."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import re

import pytest

from coterie.core.errors import PolicyFault, SystemFault
from coterie.core.protocols import Limits, TestFailure, Verdict
from coterie.plugins.envs.code.judging import (
    LEAST_CPU,
    LEAST_WALL,
    CodeJudge,
    limits_of_each,
    never_ran,
    whole_program,
)
from coterie.plugins.envs.code.problem import problem_of
from tests.plugins.envs.code.problems import ADD, ROOT, SHIFT, SQUARES, SUM_LINES
from tests.plugins.envs.code.warm import Warm


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


class Timed:
    """A sandbox in which a test takes its seconds of CPU time, and the limit ends the program."""

    def __init__(self, seconds):
        self.seconds, self.spent, self.limits = seconds, [], []

    async def judge(self, judged):
        left, failures = judged.limits.cpu_seconds, []
        asked = [int(n) for n in re.findall(r"assert f\((\d+)", judged.tests)]
        for n in asked:
            ended = self.seconds[n] >= left
            left -= min(left, self.seconds[n])
            if ended:
                error = "NotReached" if failures else "CandidateEnded"
                failures.append(TestFailure(line=1, source=f"assert f({n})", error=error, message="timeout"))
        self.spent.append(judged.limits.cpu_seconds - left)
        self.limits.append(judged.limits.cpu_seconds)
        ended = "timeout" if failures else ""
        passed = len(asked) - len(failures)
        return Verdict(passed=passed, total=len(asked), failures=tuple(failures), candidate=ended)


def timed(seconds, limits):
    """(verdict, sandbox) of a program whose tests take these seconds, by number."""
    sandbox = Timed(seconds)
    problem = problem_of({**ADD, "tests": "".join(f"assert f({n}) == 0\n" for n in seconds)})
    return asyncio.run(CodeJudge(sandbox, limits).judge(problem, "a", problem.tests)), sandbox


def verdicts(*programs, limits=None):
    """(record, program) -> verdicts of the local sandbox."""

    async def go():
        judge = CodeJudge(Warm(), limits)
        asked = []
        for record, code in programs:
            problem = problem_of(record)
            asked.append(judge.judge(problem, whole_program(problem, code), problem.tests))
        return await asyncio.gather(*asked)

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


BODIES = [
    "exit()",
    "return f(x, y)",
    "raise KeyError",
    "while True: pass",
    "return sum(iter(int, 1))",
    "__import__('os')._exit(0)",
    "return [0] * 10**10",
]
"""How a call ends, or doesn't; the second loop hears no signal."""


@pytest.mark.parametrize("body", BODIES)
def test_what_ends_one_test_costs_that_test_wherever_it_stands(body):
    program = "def f(x, y):\n    if x == {}:\n        {}\n    return x * x + y * y\n"
    programs = [(SQUARES, program.format(n, body)) for n in (1, 6)]
    found = verdicts(*programs, limits=Limits(cpu_seconds=0.12, memory_mb=256))
    assert [(verdict.passed, verdict.total) for verdict in found] == [(5, 6)] * 2
    assert [[failure.source for failure in verdict.failures] for verdict in found] == [
        [f"assert f({n}, 0) == {n * n}"] for n in (1, 6)
    ]


def test_a_loop_in_every_test_costs_its_share_of_the_limits():
    limits = Limits(cpu_seconds=3, wall_seconds=30)
    assert sum(limits_of_each(limits, 3).cpu_seconds for _ in range(3)) == 3
    assert (
        limits_of_each(limits, 3).wall_seconds == 10
        and limits_of_each(limits, 3).memory_mb == limits.memory_mb
    )
    many = limits_of_each(limits, 100)
    assert (many.cpu_seconds, many.wall_seconds) == (LEAST_CPU, LEAST_WALL), "time to load a program"
    short = Limits(cpu_seconds=0.1, wall_seconds=1)
    assert limits_of_each(short, 100) == short, "never more than the program's"
    endless = "def f(x, y):\n    while True: pass\n    return x\n"
    (verdict,) = verdicts((SQUARES, endless), limits=Limits(cpu_seconds=0.1))
    assert (verdict.passed, verdict.total) == (0, 6)
    assert {failure.message for failure in verdict.failures} == {"timeout"}


LATE = {
    "slow beside a loop": ({0: 0, 1: 0, 2: 0.35, 3: 9, 4: 0}, [3]),
    "all slow": (dict.fromkeys(range(5), 0.25), []),
    "two slow beside a loop": ({0: 0.3, 1: 0.3, 2: 9, 3: 0}, [2]),
    "all endless": (dict.fromkeys(range(5), 9), [0, 1, 2, 3, 4]),
    "slower than twice the share of all": (dict.fromkeys(range(5), 0.45), [0, 1, 2, 3, 4]),
}


@pytest.mark.parametrize("case", LATE)
def test_a_right_test_that_needs_more_than_its_share_keeps_its_credit(case):
    seconds, lost = LATE[case]
    limits = Limits(cpu_seconds=1, wall_seconds=10)
    orders = list(itertools.permutations(seconds))[:: 7 if len(seconds) == 5 else 1]
    for order in orders:
        verdict, sandbox = timed({n: seconds[n] for n in order}, limits)
        assert (verdict.passed, verdict.total) == (len(seconds) - len(lost), len(seconds))
        assert {failure.source for failure in verdict.failures} == {f"assert f({n})" for n in lost}
        assert sum(sandbox.spent[1:]) <= 3 + 1e-9 and max(sandbox.limits) == 1


def test_a_test_that_needs_no_longer_time_is_not_judged_a_third_time():
    _, sandbox = timed({0: 0, 1: 9, 2: 0}, Limits(cpu_seconds=1, wall_seconds=10))
    assert sandbox.limits == [1, *[pytest.approx(1 / 3)] * 3, 1], "only the one that the time ended, with all"
    _, sandbox = timed(dict.fromkeys(range(9), 9), Limits(cpu_seconds=0.1, wall_seconds=1))
    assert sandbox.limits == [0.1] * 10, "its share was all the time of the program"


def test_a_program_that_ends_as_it_is_loaded_is_judged_once():
    async def go(verdict):
        sandbox, problem = Slow(verdict), problem_of(SQUARES)
        sandbox.release.set()
        judge = CodeJudge(sandbox)
        await judge.judge(problem, "a", problem.tests)
        return sandbox.calls, judge.counted().get("judging/apart", 0)

    unreached, wrong = (
        TestFailure(line=1, source="", error=error) for error in ("NotReached", "AssertionError")
    )
    loaded = Verdict(passed=0, total=6, failures=(unreached,) * 6, candidate="timeout")
    ended = dataclasses.replace(loaded, candidate="exit code 0")
    assert asyncio.run(go(loaded)) == asyncio.run(go(ended)) == (1, 0)
    assert asyncio.run(go(dataclasses.replace(ended, failures=(wrong, unreached)))) == (7, 1)
    assert asyncio.run(go(Verdict(passed=5, total=6, failures=(wrong,)))) == (1, 0), "it ran to the end"


def test_tests_that_use_up_their_own_time_fail_alone():
    slow = "assert sum(1 for _ in iter(int, 1)) == f(0, 0)\n"
    for tests in (slow + SQUARES["tests"], SQUARES["tests"] + slow):
        (verdict,) = verdicts(({**ADD, "tests": tests}, ADD["solution"]), limits=Limits(cpu_seconds=0.12))
        assert (verdict.passed, verdict.total) == (6, 7)


def test_a_program_of_stdin_ran_where_a_case_ended_with_exit_code_0():
    programs = {
        "print(1)": False,
        "import sys\nprint(sum(map(int, sys.stdin)))": False,
        "raise ValueError": True,
        "exit(3)": True,
        "while True: pass": True,
        "import no_such_module": True,
        "import os\nos.kill(os.getpid(), 9)": True,
        "if not input(): exit(1)\nprint(1)": False,
    }
    problem = problem_of(SUM_LINES)
    found = verdicts(*((SUM_LINES, code) for code in programs), limits=Limits(cpu_seconds=0.12))
    assert [never_ran(verdict, problem.tests) for verdict in found] == list(programs.values())


def test_a_function_that_raises_in_every_test_was_reached():
    (raises, broken) = verdicts(
        (ADD, "def f(x, y):\n    raise RuntimeError\n"), (ADD, "TABLE = {}['x']\n" + ADD["solution"])
    )
    tests = problem_of(ADD).tests
    assert not never_ran(raises, tests) and never_ran(broken, tests)


def test_what_a_prompt_gives_is_a_part_of_the_question():
    """Two problems whose tests, entry point and programs have the same text, but other helpers."""
    tests = "assert f(1, 1) == helper()\n"
    records = [
        {**ADD, "tests": tests, "prompt": f"def helper():\n    return {number}\n\n{ADD['prompt']}"}
        for number in (2, 3)
    ]

    async def go():
        judge = CodeJudge(Warm())
        problems = [problem_of(record) for record in records]
        return [(await judge.judge(p, ADD["solution"], p.tests)).ok for p in problems]

    assert asyncio.run(go()) == [True, False]


def test_equal_programs_are_judged_once_also_at_the_same_time():
    async def go():
        sandbox, problem = Slow(), problem_of(ADD)
        judge = CodeJudge(sandbox)
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
        judge = CodeJudge(sandbox)
        with pytest.raises(SystemFault):
            await judge.judge(problem, "a", problem.tests)
        sandbox.outcome = Verdict(passed=2, total=2)
        return (await judge.judge(problem, "a", problem.tests)).ok, sandbox.calls

    assert asyncio.run(go()) == (True, 2)


def test_who_is_cancelled_cancels_nobody_else():
    async def go():
        sandbox, problem = Slow(), problem_of(ADD)
        judge = CodeJudge(sandbox)
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
        return await CodeJudge(sandbox).judge(problem, "a", problem.tests)

    verdict = asyncio.run(go())
    assert (verdict.passed, verdict.total, verdict.failures[0].error) == (0, 2, "Killed")
