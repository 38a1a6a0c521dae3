"""The values of environment `writing`: sources, states and observations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from coterie.plugins.envs.common.teams import Rendering
from coterie.plugins.envs.writing.measures import Measures

Kind = Literal["tldr", "arxiv"]
SEPARATOR = "---"
"""A line of it parts the two texts of a single agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceText:
    """What is written about."""

    recorded_name: ClassVar[str] = "Source"
    prompt: str
    """A post, or an abstract."""
    title: str = ""
    reference: str = ""
    """A text that came with it, such as the author's summary; never judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingState:
    """A value: copied by `dataclasses.replace`, never mutated."""

    recorded_name: ClassVar[str] = "State"
    source: SourceText
    answers: tuple[tuple[str, str], ...] = ()
    """(role, the text of its latest answer)."""
    answered: tuple[tuple[str, int], ...] = ()
    """(role, the turn of that answer)."""
    measures: Measures | None = None
    """Of the last complete turn."""
    turns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingObservation:
    """The observation of a role of `writing`."""

    role: str
    kind: Kind
    prompt: str
    title: str
    least: int
    most: int
    """Words that each text may have."""
    rendering: Rendering


def parts(answers: dict[str, str]) -> tuple[str, str]:
    """The two texts of a team or of a single agent; a part that nobody wrote is empty."""
    if "solver" not in answers:
        return answers.get("first", "").strip(), answers.get("second", "").strip()
    lines = answers["solver"].strip().split("\n")
    at = next((number for number, line in enumerate(lines) if line.strip() == SEPARATOR), len(lines))
    return "\n".join(lines[:at]).strip(), "\n".join(lines[at + 1 :]).strip()
