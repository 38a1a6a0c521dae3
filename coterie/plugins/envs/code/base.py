"""What the code environments share: their problems, the sandbox and the judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, cast

from pydantic import Field

from coterie.core.errors import ConfigError
from coterie.core.plugins import Composed, Plugin, PluginConfig
from coterie.core.protocols import DataSource, Limits, TaskSource, Verdict
from coterie.core.types import Task
from coterie.core.types.splits import Split
from coterie.plugins.envs.code.judging import CodeJudge, never_ran, worst
from coterie.plugins.envs.code.problem import CodeProblem, Tests, content, record_of, task_of
from coterie.plugins.envs.code.state import Attempt, JudgedWork
from coterie.plugins.envs.common.record_tasks import RecordTasks
from coterie.plugins.reports import CodeReport


class CodeConfig(PluginConfig):
    data: Annotated[DataSource | None, Composed("data_source")] = Field(
        None, description="Problems. Default: the run's table `data`."
    )
    limits: Limits | None = Field(None, description="Of a program; default: the sandbox's.")
    sandbox: Annotated[Any, Composed("sandbox")] = Field(
        None, description="Runs the programs. Default: the run's table `sandbox`."
    )


class CodeEnvironment(Plugin):
    """The base of environments that judge programs: tasks, verdicts, and what the judge counted."""

    config: CodeConfig
    functions: ClassVar[bool | None] = None
    """Whether problems must be functions (True), programs (False), or may be both (None)."""
    concurrent = True

    def __init__(self, config: CodeConfig, build: Any) -> None:
        super().__init__(config, build)
        if config.sandbox is None:
            raise ConfigError(
                "programs need a sandbox", path=f"{build.path}.sandbox", fix="set sandbox=local"
            )
        self._judge = CodeJudge(config.sandbox, config.limits)
        self._counts: Counter[str] = Counter()
        self._tasks = self.problems()

    def problems(self) -> RecordTasks | None:
        """The problems of the data source; None: they are generated.

        Raises:
            ConfigError: there is none.
        """
        data, path = self.config.data, self.build.path
        if data is None:
            raise ConfigError(
                "there are no problems",
                path=f"{path}.data",
                fix="set data=humaneval, or data=cooperative for problems that come with Coterie",
            )
        return RecordTasks(
            self.sources(data),
            self.task_of,
            lambda task: content(task.payload),
            path=path,
            page="docs/code.md",
        )

    def sources(self, data: DataSource) -> Mapping[Split, DataSource]:
        """The data source of each split."""
        return {"train": data, "val": data, "test": data}

    def tasks(self, split: Split, seed: int) -> TaskSource:
        """The problems of a split.

        Raises:
            DataError: a record is no problem of this environment.
            ConfigError: the split is empty or isn't configured.
        """
        assert self._tasks is not None, "an environment without records has tasks of its own"
        return self._tasks.tasks(split, seed)

    def leave_out(self, evaluated: Callable[[], Sequence[Task]]) -> None:
        """Leave problems out of train, where they are records. Generated ones are apart by a hash."""
        if self._tasks is not None:
            self._tasks.elsewhere = evaluated

    def record(self, task: Task) -> dict[str, Any]:
        """The task as JSON, of the record type of code sources."""
        return {**record_of(task.payload), "difficulty": task.stratum}

    def task_of(self, record: Mapping[str, Any], id: str) -> Task:
        """The task of a record; ValueError: it is no problem of this environment."""
        return task_of(record, id, functions=self.functions)

    def fingerprints(self, task: Task) -> dict[str, str]:
        """`content`: the statement without white space."""
        return {"content": content(task.payload)}

    def place(self, task: Task) -> str:
        """The record's file and line; empty: the problem is generated."""
        return "" if self._tasks is None else self._tasks.places.get(task.id, "")

    def counted(self) -> Mapping[str, float]:
        """What the judge counted. In `code_collab` also `feedback/hidden_tests`: prompts of training that
        hidden tests were told in; in `code_tests` written tests that no reference could check:
        `tests/no_reference` (the problem has none), `tests/wrong_reference` (it fails a hidden test)."""
        counts, self._counts = self._counts, Counter()
        return {**self._judge.counted(), **counts}

    def report(self, judged: JudgedWork | Attempt, tests: Tests, defined: bool, **more: bool) -> CodeReport:
        """The report on a program.

        Args:
            tests: the hidden ones.
            defined: whether it has what the problem asks for.
            more: fields that are otherwise than in a team without a helper.
        """
        report = CodeReport(
            team=False,
            aux=False,
            main=defined,
            builds=judged.builds,
            runs=not judged.error and defined and not never_ran(judged.verdict, tests),
            passed=judged.verdict.passed,
            total=judged.verdict.total,
            visible_passed=judged.visible.passed,
            visible_total=judged.visible.total,
            called=False,
            thin=False,
            ignored=False,
        )
        return cast(CodeReport, {**report, **more})

    async def verdict(
        self, problem: CodeProblem, program: str, tests: Tests, *, error: str, defined: bool
    ) -> Verdict:
        """The verdict on a program; without running it where it can't pass.

        Args:
            error: why it doesn't parse; empty: it does.
            defined: whether it has what the problem asks for.

        Raises:
            SystemFault: the sandbox failed.
        """
        if error:
            return worst(problem, tests, "SyntaxError", error)
        if not defined:
            missing = f"function {problem.entry_point}" if problem.entry_point else "program"
            return worst(problem, tests, "NotReached", f"there is no {missing}")
        return await self._judge.judge(problem, program, tests)
