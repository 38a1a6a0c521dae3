"""The judge of code environments: verdicts on programs, each asked for once.

The tests and the program run in two processes of the sandbox (`Sandbox.judge`), so no program ends the run or
forges its verdict. Equal programs have equal verdicts: siblings often write the same code.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence

from coterie.answers import keep_answer, known_answer
from coterie.core.concurrency.active_rollouts import together
from coterie.core.errors import PolicyFault
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import Judged, Limits, Program, Sandbox, TestFailure, Verdict
from coterie.core.types.digest import digest
from coterie.plugins.envs.code.problem import CodeProblem, Tests
from coterie.plugins.envs.code.sources import method_wrapper, parsed
from coterie.plugins.outputs import judge_outputs

KEPT = 4096
"""Verdicts that are remembered."""
LEAST_CPU, LEAST_WALL = 0.2, 3.0
"""Least seconds of a test that is judged by itself, where the program's limits are as long."""
SHOWN = 10
"""Most failures of a verdict on tests that were judged by themselves."""
Key = tuple[str, str, str, Tests]


class CodeJudge:
    """Verdicts on programs of a problem.

    Args:
        sandbox: runs the programs and their tests.
        limits: of each program; None: the sandbox's.
    """

    def __init__(self, sandbox: Sandbox, limits: Limits | None = None) -> None:
        self._sandbox, self._limits = sandbox, limits
        self._verdicts: OrderedDict[Key, Verdict] = OrderedDict()
        self._running: dict[Key, asyncio.Future[Verdict]] = {}
        self._counts: defaultdict[str, float] = defaultdict(float)
        self._busy, self._since = 0, 0.0

    async def judge(self, problem: CodeProblem, program: str, tests: Tests) -> Verdict:
        """The verdict on a program.

        Args:
            program: a whole program: what the prompt gives, and what the team wrote.

        Raises:
            SystemFault: the sandbox failed. The next request asks again.
        """
        question = digest(("judge", problem.entry_point, problem.given, program, tests))
        if (known := known_answer(question)) is not None:
            failures = tuple(TestFailure(**failure) for failure in known["failures"])
            return Verdict(**{**known, "failures": failures})
        verdict = await self._remembered(problem, program, tests)
        keep_answer(question, dataclasses.asdict(verdict))
        return verdict

    async def _remembered(self, problem: CodeProblem, program: str, tests: Tests) -> Verdict:
        key = (problem.entry_point, problem.given, program, tests)
        if key in self._verdicts:
            self._verdicts.move_to_end(key)
            self._counts["judging/repeated"] += 1
            return self._verdicts[key]
        if key in self._running:
            self._counts["judging/repeated"] += 1
            return await asyncio.shield(self._running[key])
        self._counts["judging/programs"] += 1
        running = asyncio.ensure_future(self._timed(lambda: self._judged(problem, program, tests)))
        self._running[key] = running
        running.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(running)

    def counted(self) -> Mapping[str, float]:
        """Since the last call: programs judged, requests that a remembered verdict answered, and seconds in
        which at least one program was being judged."""
        if self._busy:
            self._count_time()
        counts, self._counts = self._counts, defaultdict(float)
        return counts

    def _keep(self, key: Key, done: asyncio.Future[Verdict]) -> None:
        self._running.pop(key, None)
        if done.cancelled() or done.exception() is not None:
            return
        self._verdicts[key] = done.result()
        while len(self._verdicts) > KEPT:
            self._verdicts.popitem(last=False)

    async def _timed(self, judging: Callable[[], Awaitable[Verdict]]) -> Verdict:
        if not self._busy:
            self._since = time.monotonic()
        self._busy += 1
        try:
            return await judging()
        finally:
            self._busy -= 1
            if not self._busy:
                self._count_time()

    def _count_time(self) -> None:
        now = time.monotonic()
        self._counts["judging/seconds"] += now - self._since
        self._since = now

    async def _judged(self, problem: CodeProblem, program: str, tests: Tests) -> Verdict:
        try:
            if tests.cases:
                code = Program(code=program, limits=self._limits)
                with plugin_call(self._sandbox, "run"):
                    return await judge_outputs(self._sandbox, code, tests.cases)
            judged = Judged(
                candidate=program + method_wrapper(program, problem.entry_point),
                tests=test_program(problem, tests),
                calls=(problem.entry_point,),
                limits=self._limits,
            )
            with plugin_call(self._sandbox, "judge"):
                verdict = await self._sandbox.judge(judged)
        except PolicyFault as fault:  # it killed its sandbox twice
            failure = TestFailure(line=1, source="", error="Killed", message=str(fault))
            return Verdict(passed=0, total=len(tests), failures=(failure,), candidate=str(fault))
        if len(tests) > 1 and _ended_within(verdict):
            return await self._apart(problem, program, tests, verdict)
        return verdict

    async def _apart(self, problem: CodeProblem, program: str, tests: Tests, whole: Verdict) -> Verdict:
        """The verdict on a program that ended in one of its tests, so that the tests after it never ran: each
        test is judged by itself, with its share of the limits; and those that the time ended once more, with
        twice the limits between them."""
        self._counts["judging/apart"] += 1
        limits = self._limits or getattr(getattr(self._sandbox, "config", None), "limits", None) or Limits()
        alone, share = tests.apart(), limits_of_each(limits, len(tests))
        verdicts = await self._each(problem, program, alone, share)
        late = [at for at, verdict in enumerate(verdicts) if _ran_out_of_time(verdict)]
        longer = _longer(limits, share, len(late)) if late else share
        if longer != share:
            again = await self._each(problem, program, [alone[at] for at in late], longer)
            for at, verdict in zip(late, again, strict=True):
                verdicts[at] = verdict
        failed = [verdict for verdict in verdicts if not verdict.ok]
        failures = tuple(_failure(verdict) for verdict in failed[:SHOWN])
        passed, total = len(verdicts) - len(failed), len(verdicts)
        return dataclasses.replace(whole, passed=passed, total=total, failures=failures, candidate="")

    async def _each(
        self, problem: CodeProblem, program: str, alone: Sequence[Tests], limits: Limits
    ) -> list[Verdict]:
        """The verdict on each test by itself."""
        judge = CodeJudge(self._sandbox, limits)
        return await together(judge._judged(problem, program, test) for test in alone)


def test_program(problem: CodeProblem, tests: Tests) -> str:
    """The tests' side: helpers of the prompt, the tests, and a call of `check` where they define it.

    The tests have helpers of their own, so a program that defines them anew changes no test.
    """
    tree = parsed(tests.source)
    functions = {getattr(node, "name", "") for node in tree.body} if tree is not None else set()
    call = f"check({problem.entry_point})\n" if "check" in functions else ""
    return f"{problem.given}candidate = {problem.entry_point}\n{tests.source}\n{call}"


test_program.__test__ = False  # type: ignore[attr-defined]  # or pytest collects it


def whole_program(problem: CodeProblem, *parts: str) -> str:
    """What the prompt gives and what roles wrote, as one program."""
    written = [part for part in (problem.given, *parts) if part.strip()]
    return "".join(part if part.endswith("\n") else part + "\n" for part in written)


def worst(problem: CodeProblem, tests: Tests, error: str, message: str) -> Verdict:
    """The verdict on a program that isn't run, such as one that doesn't parse."""
    failure = TestFailure(line=1, source="", error=error, message=message)
    return Verdict(passed=0, total=len(tests), failures=(failure,))


_NO_EXIT = frozenset({"NotReached", "RuntimeError", "TimeLimitExceeded", "Killed"})
"""Failures of cases in which a program didn't end with exit code 0 (`judge_outputs`)."""


def never_ran(verdict: Verdict, tests: Tests) -> bool:
    """Whether no test was reached: the program ended, or failed, as it was loaded; of a program that reads
    stdin, whether no case ended with exit code 0."""
    failures = verdict.failures
    errors = _NO_EXIT if tests.cases else {"NotReached"}
    return verdict.passed == 0 and bool(failures) and all(f.error in errors for f in failures)


def _ended_within(verdict: Verdict) -> bool:
    """Whether the program, or the time of its tests, ended in one of the tests."""
    early = bool(verdict.candidate) or any(f.error in ("OutOfTime", "TestsEnded") for f in verdict.failures)
    return early and not verdict.ok and any(f.error != "NotReached" for f in verdict.failures)


def limits_of_each(limits: Limits, count: int) -> Limits:
    """The limits of one of `count` tests: its share of the seconds, but not less than the least."""
    cpu = max(limits.cpu_seconds / count, min(limits.cpu_seconds, LEAST_CPU))
    wall = max(limits.wall_seconds / count, min(limits.wall_seconds, LEAST_WALL))
    return limits.model_copy(update={"cpu_seconds": cpu, "wall_seconds": wall})


def _longer(limits: Limits, share: Limits, count: int) -> Limits:
    """The limits of one of the `count` tests whose share was too short: together they have the seconds twice,
    and none more than the program."""
    cpu = min(limits.cpu_seconds, max(share.cpu_seconds, 2 * limits.cpu_seconds / count))
    wall = min(limits.wall_seconds, max(share.wall_seconds, 2 * limits.wall_seconds / count))
    return limits.model_copy(update={"cpu_seconds": cpu, "wall_seconds": wall})


def _ran_out_of_time(verdict: Verdict) -> bool:
    """Whether the CPU or the wall time ended a test that was judged by itself."""
    late = any(
        f.error == "OutOfTime" or (f.error == "TestsEnded" and "timeout" in f.message)
        for f in verdict.failures
    )
    return not verdict.ok and (late or verdict.candidate.startswith("timeout"))


def _failure(verdict: Verdict) -> TestFailure:
    """The failure of a test that was judged by itself, with how the program ended in it."""
    failure = verdict.failures[0]
    ended = failure.error == "CandidateEnded" and verdict.candidate
    return dataclasses.replace(failure, message=verdict.candidate) if ended else failure
