"""The environment `code_tests`: a coder writes a program, a tester tests for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any

from pydantic import Field

from coterie.core.errors import ConfigError
from coterie.core.plugins import Composed
from coterie.core.protocols import DataSource, StepContext, Verdict
from coterie.core.types import TEAM, Action, ComponentKind, Finding, Step, Task, as_tuple
from coterie.core.types.splits import Split
from coterie.plugins.envs.code import feedback, sources
from coterie.plugins.envs.code.base import CodeConfig, CodeEnvironment
from coterie.plugins.envs.code.judging import whole_program
from coterie.plugins.envs.code.problem import CodeProblem, Tests
from coterie.plugins.envs.code.state import Attempt, CodeTestsObservation, CodeTestsState, Suite
from coterie.plugins.envs.code.written_tests import WrittenTests, answer_of, written_tests
from coterie.plugins.envs.common.teams import check_not_lost, team_of
from coterie.plugins.reports import WrittenTestsReport

log = logging.getLogger("coterie")

PAIR = ("coder", "tester")
SOLO = ("solver",)
ROLES = (*PAIR, *SOLO)


class CodeTestsConfig(CodeConfig):
    test: Annotated[DataSource | None, Composed("data_source")] = Field(
        None, description="Problems of split test, where they are of another set than `data`."
    )
    asked: int = Field(3, ge=1, le=50, description="Tests that are asked for.")
    most: int = Field(10, ge=1, le=100, description="Written tests that are kept, the first.")
    end_when_passed: bool = Field(
        True, description="The episode ends once the program passes the written tests. False: never."
    )
    show_compared: bool = Field(
        True,
        description="Prompts of later turns show which written tests the program failed. False: this is left "
        "to the transition mode.",
    )


class CodeTests(CodeEnvironment):
    """Write a program, and tests for it; success is that every hidden test passes.

    Source: the coding team of AT-GRPO (arXiv 2510.11062). `coder` writes the program, `tester` the tests, at
    once or one after the other. Later turns show where the two disagree, and the episode ends when the
    program passes the written tests. `solver` alone writes both, with the same turns and feedback. Hidden
    tests are never shown.
    """

    Config = CodeTestsConfig
    config: CodeTestsConfig
    roles = ROLES
    components: Mapping[str, ComponentKind] = {"solved": "potential", "passed": "potential"}
    """`solved`: every hidden test passes; `passed`: their share."""
    weights: Mapping[str, float] = {"solved": 1.0, "passed": 0.0}
    reports = ("code", "tests")
    fields = tuple(field.name for field in fields(CodeTestsObservation))

    def __init__(self, config: CodeTestsConfig, build: Any) -> None:
        super().__init__(config, build)
        order = as_tuple(build.run.team.order)
        self._team = team_of(order, (PAIR, SOLO), "code_tests", build.path)
        self._coder, self._tester = self._team[0], self._team[-1]
        if "coder" in self._team:
            self._coder, self._tester = PAIR
        self._unsound: set[str] = set()
        """Statements of problems whose reference fails a hidden test."""

    def sources(self, data: DataSource) -> Mapping[Split, DataSource]:
        return {"train": data, "val": data, "test": self.config.test or data}

    # ---- the game ------------------------------------------------------------------------------------------

    def reset(self, task: Task, seed: int) -> CodeTestsState:
        return CodeTestsState(problem=task.payload)

    def acting_roles(self, state: CodeTestsState) -> tuple[str, ...] | None:
        return () if state.over else None

    def observe(self, state: CodeTestsState, role: str) -> CodeTestsObservation:
        problem, attempt, suite = state.problem, state.attempt, state.suite
        # What another role wrote is seen by those that act after it in the turn.
        sees_code = attempt is not None and (role == self._coder or attempt.turn == state.turns)
        sees_tests = suite is not None and (role == self._tester or suite.turn == state.turns)
        return CodeTestsObservation(
            role=role,
            prompt=problem.prompt,
            form="function" if problem.entry_point else "program",
            entry_point=problem.entry_point,
            parameters=sources.parameters(problem.prompt, problem.entry_point) if problem.entry_point else "",
            asked=self.config.asked,
            code=attempt.code if attempt is not None and sees_code else "",
            tests=answer_of(suite.read.tests)
            if suite is not None and sees_tests and suite.read.tests
            else "",
            compared=self._compared(state) if self.config.show_compared else (),
            rendering="prose",
        )

    async def step(self, state: CodeTestsState, actions: Mapping[str, Action], ctx: StepContext) -> Step:
        """The state with the answers added, each judged by itself; and the written tests on the program, once
        both were written in the turn.

        Raises:
            SystemFault: an action was lost, or the sandbox failed.
        """
        check_not_lost(actions)
        texts = {role: action.text for role, action in actions.items()}
        after = replace(state, answers=tuple((dict(state.answers) | texts).items()), turns=ctx.turn)
        info: dict[str, Any] = {}
        scores: dict[tuple[str, str], float | None] = {}
        if self._coder in actions:
            attempt = await self._attempt(state.problem, texts[self._coder], ctx.turn)
            after = replace(after, attempt=attempt)
            info["code"] = self.report(attempt, state.problem.tests, attempt.defined)
            scores = {(TEAM, "solved"): float(attempt.solved), (TEAM, "passed"): attempt.share}
        if self._tester in actions:
            suite = self._suite(state.problem, texts[self._tester], ctx.turn)
            after = replace(after, suite=suite)
            info["tests"] = await self._tests_report(state.problem, suite)
        program, tests = after.attempt, after.suite
        if program and tests and program.turn == tests.turn == ctx.turn:
            compared = await self._on_program(after, tests.read.tests)
            over = self.config.end_when_passed and compared.ok
            after = replace(after, compared=compared, turns=ctx.turn + 1, over=over)
        return Step(state=after, scores=scores, info=info)

    def outcome(self, state: CodeTestsState) -> dict[str, float]:
        """`success`, `turns`, and of the latest program and tests: there is code that parses (`syntax`), the
        share of hidden tests that pass (`pass_rate`), the share of written tests that can be read
        (`valid_tests`), the program passes them (`agreed`)."""
        attempt, suite, compared = state.attempt, state.suite, state.compared
        return {
            "success": float(attempt is not None and attempt.solved),
            "turns": float(state.turns),
            "syntax": float(attempt is not None and attempt.builds),
            "pass_rate": attempt.share if attempt is not None else 0.0,
            "valid_tests": suite.valid if suite is not None else 0.0,
            "agreed": float(compared is not None and compared.ok),
        }

    # ---- the optional part ---------------------------------------------------------------------------------

    async def findings(self, state: CodeTestsState, role: str, tests: int) -> tuple[Finding, ...]:
        """The checks of the latest program and tests; none before them. Its tests are the written ones:
        hidden tests are never told.

        Raises:
            SystemFault: the sandbox failed.
        """
        attempt, suite = state.attempt, state.suite
        parts: list[Finding] = []
        if attempt is not None:
            if state.problem.entry_point:
                parts.append(feedback.definition("coder", state.problem.entry_point, attempt.defined))
            parts.append(feedback.syntax(attempt.error))
        if suite is not None:
            parts.append(_reading(suite, self.config.asked))
        if attempt is not None and suite is not None and state.compared is not None:
            chosen = suite.read.tests.sliced(tests)
            parts.append(feedback.tests_finding(await self._on_program(state, chosen)))
        return tuple(parts)

    async def diagnose(self, state: CodeTestsState, role: str) -> str:
        """What is wrong with the latest program and tests, in sentences; empty: nothing. Without the tests
        that the program failed where prompts show them."""
        parts = await self.findings(state, role, 0)
        return feedback.sentences([f for f in parts if f.name != "tests" or not self.config.show_compared])

    def latest(self, state: CodeTestsState) -> dict[str, str]:
        """The latest answer of every role, for an expert that edits them."""
        return dict(state.answers)

    def demonstrate(self, state: CodeTestsState, role: str, noise: float, rng: Any) -> str:
        """The reference for the coder, tests that come with the problem for the tester, both for the solver;
        with probability `noise` a program that returns None, or a test that expects it.

        Raises:
            ConfigError: the problem has no reference, or no tests that could be shown.
        """
        problem = state.problem
        name, wrong = problem.entry_point, rng.random() < noise
        code, tests = problem.solution, problem.visible
        if (role != "tester" and not code) or (role != "coder" and not tests):
            missing = "reference" if role != "tester" and not code else "visible tests"
            raise ConfigError(
                f"a problem has no {missing} for role '{role}'",
                path=f"{self.build.path}.data",
                why="demonstrations are made of them",
                fix="set data=cooperative, or remove the warm start",
            )
        if wrong:
            code = f"def {name}(*values):\n    return None\n" if name else "print()\n"
            tests = Tests(source=f"assert {name}() is None") if name else Tests(cases=(("", ""),))
        parts = [f"```python\n{code.rstrip()}\n```"] if role != "tester" else []
        return "\n".join([*parts, answer_of(tests)] if role != "coder" else parts)

    # ---- inside --------------------------------------------------------------------------------------------

    async def _attempt(self, problem: CodeProblem, text: str, turn: int) -> Attempt:
        code = sources.answered_code(text)
        written = sources.kept_code(code) if problem.entry_point else code
        whole = whole_program(problem, written)
        defined = bool(code.strip())
        if problem.entry_point:
            defined = sources.defines_entry(written, problem.entry_point)
        error = sources.syntax_error(whole)
        hidden, shown = problem.tests, problem.visible
        verdict = await self.verdict(problem, whole, hidden, error=error, defined=defined)
        visible = Verdict(passed=0, total=0)
        if shown:
            visible = await self.verdict(problem, whole, shown, error=error, defined=defined)
        return Attempt(
            code=code,
            written=bool(written.strip()),
            whole=whole,
            turn=turn,
            defined=defined,
            error=error,
            verdict=verdict,
            visible=visible,
        )

    def _suite(self, problem: CodeProblem, text: str, turn: int) -> Suite:
        read = written_tests(text, problem.entry_point, self.config.most)
        wanted = max(min(read.written, self.config.most), self.config.asked)
        return Suite(read=read, turn=turn, valid=min(1.0, len(read.tests) / wanted))

    async def _on_program(self, state: CodeTestsState, tests: Tests) -> Verdict:
        """The verdict of written tests on the latest program."""
        attempt = state.attempt
        assert attempt is not None, "there is a program"
        if not tests:
            return Verdict(passed=0, total=0)
        return await self.verdict(
            state.problem, attempt.whole, tests, error=attempt.error, defined=attempt.defined
        )

    async def _tests_report(self, problem: CodeProblem, suite: Suite) -> WrittenTestsReport:
        count = len(suite.read.tests)
        return WrittenTestsReport(
            author=self._tester,
            count=count,
            valid=suite.valid,
            right=await self._right(problem, suite.read),
        )

    async def _right(self, problem: CodeProblem, read: WrittenTests) -> float | None:
        """Share of the written tests that the reference passes; None: there is no sound reference."""
        if not problem.solution:
            self._counts["tests/no_reference"] += 1
            return None
        reference = whole_program(problem, problem.solution)
        sound = await self.verdict(problem, reference, problem.tests, error="", defined=True)
        if not sound.ok:
            self._counts["tests/wrong_reference"] += 1
            if problem.prompt not in self._unsound:
                self._unsound.add(problem.prompt)
                log.warning(
                    "%s: the reference of a problem fails %d of its %d hidden tests, so no written test is "
                    "checked by it: %.80r",
                    *(self.build.path, sound.total - sound.passed, sound.total, problem.prompt),
                )
            return None
        if not read.tests:
            return 0.0
        verdict = await self.verdict(problem, reference, read.tests, error="", defined=True)
        return verdict.passed / verdict.total

    def _compared(self, state: CodeTestsState) -> tuple[str, ...]:
        """What the written tests said of the program of the last turn."""
        if state.compared is None or state.turns == 0 or state.over:
            return ()
        if not state.compared.total:
            return ("There was no test that could be read.",)
        return feedback.tests_finding(state.compared).details


def _reading(suite: Suite, asked: int) -> Finding:
    """Whether the tests that were written can be read, and are as many as asked for."""
    count, written = len(suite.read.tests), suite.read.written
    summary = f"Tests that can be read: {count} of {max(written, asked)}"
    detail = f"{summary} ({written} were written, {asked} asked for)"
    return Finding(name="reading", passed=suite.valid == 1.0, summary=summary, details=(detail,))
