"""The environment `code_collab`: a helper writes `aux`, a main role the function that calls it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar, Literal, cast

from pydantic import Field

from coterie.core.errors import ConfigError, PluginError
from coterie.core.protocols import StepContext, TaskSource, Verdict
from coterie.core.types import TEAM, Action, ComponentKind, Finding, Step, Task, as_tuple
from coterie.core.types.splits import Split
from coterie.plugins.envs.code import feedback, sources
from coterie.plugins.envs.code.analysis import usage
from coterie.plugins.envs.code.base import CodeConfig, CodeEnvironment
from coterie.plugins.envs.code.entry import AUX, without
from coterie.plugins.envs.code.judging import whole_program, worst
from coterie.plugins.envs.code.problem import CodeProblem, Tests, compared_assert, tests_of
from coterie.plugins.envs.code.state import CodeObservation, CodeState, JudgedWork, WrittenCode
from coterie.plugins.envs.common.teams import check_not_lost, team_of
from coterie.plugins.functions import FunctionReference, load_function

log = logging.getLogger("coterie")

PAIR = ("aux", "main")
SOLO = ("solver",)
ROLES = (*PAIR, *SOLO)
SHOWS_NO_TEST = ("none", "plain", "passed", "level_passed", "expert_edits")
"""Transition modes that tell how many tests passed at most."""


class CodeCollabConfig(CodeConfig):
    end_when_solved: bool = Field(
        False, description="The episode ends once every hidden test passes. False: all turns are played."
    )
    feedback_tests: Literal["visible", "hidden"] | FunctionReference = Field(
        "visible",
        description="The tests that feedback may tell of. visible: those that come with the problem, and the "
        "hidden ones where none do, with a warning; hidden: the hidden ones, as in the paper; "
        "`module:function`: (problem) -> Python with asserts. An evaluation tells of hidden tests how many "
        "passed, and never which.",
    )


class CodeCollab(CodeEnvironment):
    """Write a function in two parts; success is that every hidden test passes.

    Source: MAGRPO (arXiv 2508.04652). `aux` writes a function `aux`; `main` writes the entry point, which may
    call `aux`, doesn't see it and must not define it. Both act at once. `solver` alone writes the entry
    point. What differs: tests run in a sandbox, in a process apart from the program; helpers that the prompt
    gives stay; code is read by `ast`.
    """

    Config = CodeCollabConfig
    config: CodeCollabConfig
    roles = ROLES
    components: Mapping[str, ComponentKind] = {"solved": "potential", "passed": "potential"}
    """`solved`: every hidden test passes; `passed`: their share."""
    weights: Mapping[str, float] = {"solved": 1.0, "passed": 0.0}
    reports = ("code",)
    name: ClassVar[str] = "code_collab"
    fields = tuple(field.name for field in fields(CodeObservation))
    functions = True

    def __init__(self, config: CodeCollabConfig, build: Any) -> None:
        super().__init__(config, build)
        order = as_tuple(build.run.team.order)
        self._team = team_of(order, (PAIR, SOLO), self.name, build.path)
        self._writer = "main" if "main" in self._team else "solver"
        self._tests = None
        if config.feedback_tests not in ("visible", "hidden"):
            self._tests = load_function(config.feedback_tests, f"{build.path}.feedback_tests")
        self._warned = False

    # ---- the game ------------------------------------------------------------------------------------------

    def tasks(self, split: Split, seed: int) -> TaskSource:
        tasks = super().tasks(split, seed)
        if split == "train" and not self._warned:
            self._warn_of_hidden(tasks)
        return tasks

    def reset(self, task: Task, seed: int) -> CodeState:
        return CodeState(problem=task.payload)

    def acting_roles(self, state: CodeState) -> tuple[str, ...] | None:
        return () if state.over else None

    def observe(self, state: CodeState, role: str) -> CodeObservation:
        problem, mine = state.problem, state.of(role)
        return CodeObservation(
            role=role,
            prompt=problem.prompt,
            entry_point=problem.entry_point,
            parameters=sources.parameters(problem.prompt, problem.entry_point),
            helped=AUX in self._team,
            size_limit=self._limit(problem) if role == self._writer else None,
            code=mine.code if mine is not None else "",
            rendering="prose",
        )

    async def step(self, state: CodeState, actions: Mapping[str, Action], ctx: StepContext) -> Step:
        """The state with the answers added; judged once every role of the team has answered in the turn.

        Raises:
            SystemFault: an action was lost, or the sandbox failed.
        """
        check_not_lost(actions)
        latest = dict(state.latest)
        for role, action in actions.items():
            code = self.code_of(role, action.text)
            latest[role] = WrittenCode(text=action.text, code=code, turn=ctx.turn)
        after = replace(state, latest=tuple(latest.items()), turns=ctx.turn + 1, evaluation=ctx.evaluation)
        info: dict[str, Any] = {"wrote": {role: latest[role].code for role in actions}}
        if any(role not in latest or latest[role].turn < ctx.turn for role in self._team):
            return Step(state=after, info=info)
        work = await self._work(after)
        after = replace(after, work=work, over=self.config.end_when_solved and work.solved)
        uses = {"called": work.called, "thin": work.thin, "ignored": bool(work.ignored)}
        made = {"team": AUX in self._team, "aux": work.aux, "main": work.main and not work.excess}
        info["code"] = self.report(work, state.problem.tests, work.main, **made, **uses)
        share = work.verdict.passed / work.verdict.total if work.verdict.total else 0.0
        scores = {(TEAM, "solved"): float(work.solved), (TEAM, "passed"): share}
        return Step(state=after, scores=scores, info=info)

    def code_of(self, role: str, text: str) -> str:
        """The code in a role's answer; empty: there is none."""
        return sources.answered_code(text)

    def outcome(self, state: CodeState) -> dict[str, float]:
        """`success`, `turns`, and of the last turn: there is code that parses (`syntax`), the share of hidden
        tests that pass (`pass_rate`), the entry point uses what `aux` returns (`aux_usage`)."""
        work = state.work
        if work is None:
            return {
                "success": 0.0,
                "turns": float(state.turns),
                "syntax": 0.0,
                "pass_rate": 0.0,
                "aux_usage": 0.0,
            }
        return {
            "success": float(work.solved),
            "turns": float(state.turns),
            "syntax": float(work.builds),
            "pass_rate": work.verdict.passed / work.verdict.total if work.verdict.total else 0.0,
            "aux_usage": float(work.called and not work.ignored),
        }

    # ---- the optional part ---------------------------------------------------------------------------------

    def feedback_tests(self, problem: CodeProblem) -> Tests | str:
        """The tests that feedback may tell of, as `Tests` or Python with asserts: those that `feedback_tests`
        chooses. A subclass may replace it.
        """
        if self._tests is not None:
            return cast(str, self._tests(problem))
        visible = self.config.feedback_tests == "visible" and len(problem.visible)
        return problem.visible if visible else problem.tests

    async def findings(self, state: CodeState, role: str, tests: int) -> tuple[Finding, ...]:
        """The checks of the last turn's program, the role's own part first; none before it. In an evaluation,
        no test that is among the hidden ones, only how many passed.

        Raises:
            SystemFault: the sandbox failed.
        """
        work = state.work
        if work is None:
            return ()
        problem = state.problem
        shown = self.tests_shown(problem).sliced(tests)
        verdict = await self._verdict(problem, work, shown)
        hidden = problem.tests.compared(problem.entry_point)
        if state.evaluation:
            unknown = {"", *hidden}
            kept = (
                f for f in verdict.failures if compared_assert(f.source, problem.entry_point) not in unknown
            )
            verdict = replace(verdict, failures=tuple(kept))
        elif hidden & shown.compared(problem.entry_point):
            self._counts["feedback/hidden_tests"] += 1
        return feedback.findings(state.problem, work, verdict, role, helped=AUX in self._team)

    async def diagnose(self, state: CodeState, role: str) -> str:
        """The findings that did not pass, in sentences; empty: all did."""
        return feedback.sentences(await self.findings(state, role, 0))

    def latest(self, state: CodeState) -> dict[str, str]:
        """The latest answer of every role, for an expert that edits them."""
        return {role: written.text for role, written in state.latest}

    def demonstrate(self, state: CodeState, role: str, noise: float, rng: Any) -> str:
        """The reference's part for a role; with probability `noise` a function that returns None.

        Raises:
            ConfigError: the problem has no reference for the role.
        """
        problem = state.problem
        name = AUX if role == AUX else problem.entry_point
        if rng.random() < noise:
            return f"def {name}(*values):\n    return None\n"
        given = {AUX: problem.aux_solution, "main": problem.main_solution, "solver": problem.solution}[role]
        if not given:
            raise ConfigError(
                f"a problem has no reference for role '{role}'",
                path=f"{self.build.path}.data",
                why="demonstrations are references, and this data set has none for a team",
                fix="set data=cooperative, or remove the warm start",
            )
        return sources.kept_code(given)

    # ---- inside --------------------------------------------------------------------------------------------

    async def _work(self, state: CodeState) -> JudgedWork:
        problem, main = state.problem, state.of(self._writer)
        assert main is not None, "every role has answered"
        aux = state.of(AUX)
        aux_code = sources.kept_code(aux.code) if aux is not None else ""
        main_code = sources.kept_code(main.code)
        if aux is not None:
            main_code = without(main_code, AUX, problem.entry_point)
        program = whole_program(problem, aux_code, main_code)
        used = usage(main_code, problem.entry_point) if aux is not None else usage("", "")
        limit = self._limit(problem)
        work = JudgedWork(
            program=program,
            written=bool(aux_code.strip() or main_code.strip()),
            aux=aux is not None and sources.defines(aux_code, AUX),
            main=sources.defines_entry(main_code, problem.entry_point),
            excess=max(0, sources.main_size(main_code) - limit) if limit is not None else 0,
            error=sources.syntax_error(program),
            verdict=worst(problem, problem.tests, "NotReached", ""),
            visible=worst(problem, problem.tests, "NotReached", ""),
            called=used.called,
            thin=used.thin,
            ignored=used.ignored,
        )
        shown = self.tests_shown(problem)
        verdict = await self._verdict(problem, work, problem.tests)
        visible = verdict if shown == problem.tests else await self._verdict(problem, work, shown)
        return replace(work, verdict=verdict, visible=visible)

    async def _verdict(self, problem: CodeProblem, work: JudgedWork, tests: Tests) -> Verdict:
        return await self.verdict(problem, work.program, tests, error=work.error, defined=work.main)

    def tests_shown(self, problem: CodeProblem) -> Tests:
        """What `feedback_tests` gives, checked.

        Raises:
            PluginError: it raised, or gave no test.
        """
        path = f"{self.build.path}.feedback_tests" if self._tests is not None else self.build.path
        try:
            given = self.feedback_tests(problem)
            if inspect.iscoroutine(given):
                given.close()  # else Python warns that it was never awaited
            if isinstance(given, str):
                given = tests_of(given)
            if not isinstance(given, Tests) or not len(given):
                raise ValueError(f"it gave {given!r:.60}")
        except Exception as error:
            why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            what = f"there are no feedback tests for the problem of '{problem.entry_point}'"
            fix = "let `def feedback_tests(problem)` return Python with asserts, or Tests"
            raise PluginError(what, path=path, why=why, fix=fix) from error
        return given

    def _warn_of_hidden(self, tasks: TaskSource) -> None:
        """Say once, before the first step, that later turns show hidden tests for want of visible ones."""
        run = self.build.run
        replaced = type(self).feedback_tests is not CodeCollab.feedback_tests
        if replaced or self.config.feedback_tests != "visible" or run.team.max_turns < 2:
            return
        if run.transition["type"] in SHOWS_NO_TEST:
            return
        self._warned = True
        count = sum(not tasks[index].payload.visible for index in range(len(tasks)))
        if count:
            log.warning(
                "%s.feedback_tests: %d of %d problems of train have no visible tests, so later turns show "
                "those of their hidden tests that failed, and a success there may be copied (metric "
                "feedback/hidden_tests); fix: give the records `visible_tests`, or set feedback_tests=hidden "
                "to have it so",
                *(self.build.path, count, len(tasks)),
            )

    def _limit(self, problem: CodeProblem) -> int | None:
        """Most characters of the main role's code; a solver has no helper, and so no limit."""
        return problem.size_limit if AUX in self._team else None
