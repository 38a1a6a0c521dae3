"""The environment `writing`: two texts on one source, which must fit each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any

from pydantic import Field

from coterie.core.errors import ConfigError
from coterie.core.plugins import Composed, Plugin, PluginConfig
from coterie.core.protocols import DataSource, StepContext, TaskSource
from coterie.core.types import TEAM, Action, ComponentKind, Finding, Step, Task, as_tuple
from coterie.core.types.splits import Split
from coterie.plugins.envs.common.record_tasks import RecordTasks
from coterie.plugins.envs.common.teams import check_not_lost, team_of
from coterie.plugins.envs.writing.measures import FORMS, Measures, findings, measure
from coterie.plugins.envs.writing.state import Kind, SourceText, WritingObservation, WritingState, parts
from coterie.plugins.reports import WritingReport

PAIR = ("first", "second")
SOLO = ("solver",)


class WritingConfig(PluginConfig):
    data: Annotated[DataSource | None, Composed("data_source")] = Field(
        None, description="Posts or abstracts. Default: the run's table `data`."
    )
    kind: Kind = Field(
        description="tldr: summaries of a post, short and long; arxiv: two paragraphs on an abstract."
    )


class Writing(Plugin):
    """Write two texts on one source; success is that lengths and words fit.

    Source: the writing games of MAGRPO (arXiv 2508.04652). `first` and `second` each write one text, at once;
    the second doesn't see the first. `solver` alone writes both, with a line `---` between them. What differs
    from the original: transition words are words and no parts of words, they are searched in each text by
    itself, and an answer without the line is not cut at a third.
    """

    Config = WritingConfig
    config: WritingConfig
    roles = (*PAIR, *SOLO)
    components: Mapping[str, ComponentKind] = {"fits": "potential"}
    """`fits`: both texts have the asked length, and lengths and vocabularies their ratio."""
    weights: Mapping[str, float] = {"fits": 1.0}
    reports = ("writing",)
    fields = tuple(field.name for field in fields(WritingObservation))

    def __init__(self, config: WritingConfig, build: Any) -> None:
        super().__init__(config, build)
        self._team = team_of(as_tuple(build.run.team.order), (PAIR, SOLO), "writing", build.path)
        if config.data is None:
            raise ConfigError(
                "there is nothing to write about",
                path=f"{build.path}.data",
                fix="set data=tldr, or data=arxiv",
            )
        self._form = FORMS[config.kind]
        self._tasks = RecordTasks(
            dict.fromkeys(("train", "val", "test"), config.data),
            self.task_of,
            lambda task: _content(task.payload),
            path=build.path,
            page="docs/writing.md",
        )

    # ---- tasks ---------------------------------------------------------------------------------------------

    def tasks(self, split: Split, seed: int) -> TaskSource:
        """The sources of a split.

        Raises:
            DataError: a record has no text `prompt`.
            ConfigError: the split is empty or isn't configured.
        """
        return self._tasks.tasks(split)

    def leave_out(self, evaluated: Callable[[], Sequence[Task]]) -> None:
        """Leave records out of train."""
        self._tasks.elsewhere = evaluated

    def place(self, task: Task) -> str:
        """The record's file and line."""
        return self._tasks.places.get(task.id, "")

    def record(self, task: Task) -> dict[str, Any]:
        """The task as JSON: `prompt`, and `title` and `reference` where there are any."""
        source: SourceText = task.payload
        table = {"prompt": source.prompt, "title": source.title, "reference": source.reference}
        return {name: text for name, text in table.items() if text}

    def task_of(self, record: Mapping[str, Any], id: str) -> Task:
        """The task of a record; ValueError: it has no text `prompt`, or a field of another type."""
        texts = {name: record.get(name) or "" for name in ("prompt", "title", "reference")}
        for name, text in texts.items():
            if not isinstance(text, str):
                raise ValueError(f"the field '{name}' is no text: {text!r:.60}")
        if not texts["prompt"].strip():
            raise ValueError("the field 'prompt' is empty or missing")
        return Task(id=id, payload=SourceText(**texts), answer=texts["reference"] or None)

    def fingerprints(self, task: Task) -> dict[str, str]:
        """`content`: the source without white space."""
        return {"content": _content(task.payload)}

    # ---- the game ------------------------------------------------------------------------------------------

    def reset(self, task: Task, seed: int) -> WritingState:
        return WritingState(source=task.payload)

    def acting_roles(self, state: WritingState) -> tuple[str, ...] | None:
        return None

    def observe(self, state: WritingState, role: str) -> WritingObservation:
        source = state.source
        return WritingObservation(
            role=role,
            kind=self.config.kind,
            prompt=source.prompt,
            title=source.title,
            least=self._form.least,
            most=self._form.most,
            rendering="prose",
        )

    async def step(self, state: WritingState, actions: Mapping[str, Action], ctx: StepContext) -> Step:
        """The state with the texts added; measured once every role has written in the turn.

        Raises:
            SystemFault: an action was lost.
        """
        check_not_lost(actions)
        answers = dict(state.answers) | {role: action.text for role, action in actions.items()}
        answered = dict(state.answered) | dict.fromkeys(actions, ctx.turn)
        after = replace(
            state, answers=tuple(answers.items()), answered=tuple(answered.items()), turns=ctx.turn + 1
        )
        if any(answered.get(role) != ctx.turn for role in self._team):
            return Step(state=after)
        measured = measure(*parts(answers), self._form)
        after = replace(after, measures=measured)
        scores = {(TEAM, "fits"): float(fits(measured))}
        return Step(state=after, scores=scores, info={"writing": _report(measured)})

    def outcome(self, state: WritingState) -> dict[str, float]:
        """`success`, `turns`, and of the last turn the levels as shares: `structure`, `length`, `vocabulary`,
        `style`."""
        measured = state.measures
        levels = (
            _report(measured) if measured is not None else dict.fromkeys(WritingReport.__annotations__, 0.0)
        )
        return {
            "success": float(measured is not None and fits(measured)),
            "turns": float(state.turns),
            **{name: float(value) for name, value in levels.items()},  # type: ignore[arg-type]
        }

    # ---- the optional part ---------------------------------------------------------------------------------

    async def findings(self, state: WritingState, role: str, tests: int) -> tuple[Finding, ...]:
        """The levels of the last turn's texts; none before it.

        Raises:
            ConfigError: `tests` is not 0: texts have no tests to choose from.
        """
        if tests:
            raise ConfigError(
                "nothing reads this",
                path="transition.sandbox_slice",
                why="the environment 'writing' measures texts and has no tests",
                fix="remove it",
            )
        return findings(state.measures, self._form) if state.measures is not None else ()

    async def diagnose(self, state: WritingState, role: str) -> str:
        """The levels that did not pass, in sentences; empty: all did."""
        levels = await self.findings(state, role, 0)
        return "\n".join(line for f in levels if f.passed is False for line in f.details)

    def latest(self, state: WritingState) -> dict[str, str]:
        """The latest text of every role, for an expert that edits them."""
        return dict(state.answers)


def fits(measured: Measures) -> bool:
    """Whether lengths and vocabularies have their whole value."""
    return measured.structure == measured.length == measured.vocabulary == 1.0


def _report(measured: Measures) -> WritingReport:
    return WritingReport(
        structure=measured.structure or 0.0,
        length=measured.length or 0.0,
        vocabulary=measured.vocabulary or 0.0,
        style=measured.style or 0.0,
    )


def _content(source: SourceText) -> str:
    return "".join(source.prompt.split())
