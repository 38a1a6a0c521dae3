"""Modes that tell what came of an answer: by the environment's diagnosis, or by its findings, the levels."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from coterie.core.errors import ConfigError
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.plugins.origin import plugin_call
from coterie.core.rollout.contracts import refuse
from coterie.core.types import Finding, HistoryEntry, all_passed
from coterie.discovery.members import Diagnoses, GivesFindings
from coterie.plugins.transitions.revision import Revision, RevisionConfig, titled

PASSED = "All checks passed."
FAILED = "Not all checks passed."
"""The summaries of a diagnosis, which has one text."""
ALL = "All levels passed."
NOT_ALL = "Not all levels passed."
RESULTS = "Results:"


class Diagnosis(Plugin):
    """Gives each role `environment.diagnose(state, role)` as feedback, from its second decision on."""

    def __init__(self, config: Any, build: Any) -> None:
        super().__init__(config, build)
        if not isinstance(build.environment, Diagnoses):
            raise ConfigError(
                "the environment has no diagnosis",
                path=build.path,
                why=f"{type(build.environment).__name__} has no `diagnose(state, role)`",
                fix="set transition: none, or use an environment that has one",
            )

    async def tell(
        self, role: str, state: Any, history: Sequence[HistoryEntry], environment: Any
    ) -> Sequence[str]:
        """One sentence; none before the role's first action, or where the diagnosis is empty."""
        if not history:
            return ()
        sentence = await diagnosis_of(environment, state, role)
        return (sentence,) if sentence else ()


async def diagnosis_of(environment: Any, state: Any, role: str) -> str:
    """The environment's diagnosis for a role; it may be a coroutine.

    Raises:
        PluginError: it is no text.
    """
    with plugin_call(environment, "diagnose"):
        diagnosis = environment.diagnose(state, role)
        text: Any = await diagnosis if inspect.isawaitable(diagnosis) else diagnosis
    if not isinstance(text, str):
        refuse(environment, "diagnose", text, "return a text; an empty one: nothing is wrong")
    return text


def _slice(value: Any) -> Any:
    """The number of tests of `sandbox_slice`; 0: all."""
    if value is None or (isinstance(value, str) and value.strip().lower() == "all"):
        return 0
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,9}\s*", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("a whole number n (the first n tests; -n: the last n), or 0, null or all")
    return value


class LevelsConfig(RevisionConfig):
    sandbox_slice: Annotated[int, BeforeValidator(_slice)] = Field(
        0,
        description="Which of the task's feedback tests are run: n: the first n; -n: the last n; 0, null or "
        "all: all. Rewards are not affected.",
    )


class Levels(Revision):
    """The base of the modes that tell what came of the answer.

    An environment with `findings` gives them; with `diagnose` alone its text is one finding, which passed
    where the text is empty.
    """

    Config: type[PluginConfig] = LevelsConfig
    config: LevelsConfig

    def __init__(self, config: LevelsConfig, build: Any) -> None:
        super().__init__(config, build)
        environment = build.environment
        if isinstance(environment, GivesFindings):
            return
        name = type(environment).__name__
        if not isinstance(environment, Diagnoses):
            raise ConfigError(
                "the environment can't say what came of an answer",
                path=f"{build.path}.type",
                why=f"{name} has neither `findings(state, role, tests)` nor `diagnose(state, role)`",
                fix="choose plain, expert_edits or none, or an environment that has one of them",
            )
        if config.sandbox_slice != 0:
            raise ConfigError(
                "nothing reads this",
                path=f"{build.path}.sandbox_slice",
                why=f"{name} has no `findings(state, role, tests)`, which would choose the tests",
                fix="remove it: the whole diagnosis is told",
            )

    async def findings(self, role: str, state: Any, environment: Any) -> Sequence[Finding]:
        """The environment's findings for a role.

        Raises:
            SystemFault: the environment could not check the answer.
            PluginError: it returned something else.
        """
        if not isinstance(environment, GivesFindings):
            text = await diagnosis_of(environment, state, role)
            summary = FAILED if text else PASSED
            return (
                Finding(name="diagnosis", passed=not text, summary=summary, details=(text,) * bool(text)),
            )
        with plugin_call(environment, "findings"):
            given = await environment.findings(state, role, self.config.sandbox_slice)
        if not isinstance(given, (tuple, list)) or not all(isinstance(part, Finding) for part in given):
            refuse(environment, "findings", given, "return a tuple of coterie.Finding")
        return given


class Passed(Levels):
    """Tells each role its earlier answer, and whether every check of the team's work passed."""

    words = (ALL, NOT_ALL)

    async def remarks(
        self, role: str, state: Any, history: Sequence[HistoryEntry], environment: Any
    ) -> Sequence[str]:
        """One sentence; where there is no check, not all passed."""
        return (ALL if all_passed(tuple(await self.findings(role, state, environment))) else NOT_ALL,)


class LevelPassed(Levels):
    """Tells each role its earlier answer, and the summaries of the findings, in their order."""

    words = (RESULTS, PASSED, FAILED)

    async def remarks(
        self, role: str, state: Any, history: Sequence[HistoryEntry], environment: Any
    ) -> Sequence[str]:
        """A title and the lines of the findings; nothing where no finding has one."""
        findings = await self.findings(role, state, environment)
        lines = [line for finding in findings for line in self.lines(finding) if line.strip()]
        return (RESULTS, *lines) if lines else ()

    def lines(self, finding: Finding) -> Sequence[str]:
        """What is told of a finding: its summary."""
        return (finding.summary,)


class LevelFeedback(LevelPassed):
    """Tells each role all its earlier answers, by turn, and the details of the findings, in their order."""

    def answers(self, history: Sequence[HistoryEntry]) -> list[str]:
        """Every answer under its title, oldest first."""
        return [text for entry in history for text in titled(_title(entry.turn + 1), entry.action.text)]

    def lines(self, finding: Finding) -> Sequence[str]:
        """What is told of a finding: its details, where it has none its summary."""
        return finding.details or (finding.summary,)

    def vocabulary(self) -> Iterable[str]:
        """The words of the mode's own sentences, with the number of every turn."""
        turns = range(1, self.build.run.team.max_turns + 1)
        titles = [text for turn in turns for text in (f"{_title(turn)}:", f"{_title(turn)} was empty.")]
        return sorted({*super().vocabulary(), *(word for title in titles for word in title.split())})


def _title(turn: int) -> str:
    return f"Your answer of turn {turn}"
