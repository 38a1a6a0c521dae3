"""The values of environment `math`: problems, messages, states and observations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from coterie.plugins.envs.common.code import ToolRun
from coterie.plugins.envs.common.teams import Rendering


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem; the last two fields are of generated ones."""

    text: str
    words: str = ""
    """The problem in few words, for the compact rendering: `has 7 gets 5 loses 3`."""
    expression: str = ""
    """What is to be computed: `7 + 5 - 3`. Empty where it isn't known."""


Writes = Literal["answer", "program", "work"]
"""What an action is to hold: the role's answer, a program, or an expression with fewer operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MathUtterance:
    """One action of a role, with what came of it."""

    recorded_name: ClassVar[str] = "Utterance"
    turn: int
    role: str
    text: str
    answer: str | None
    """The answer in it, or that its program printed; None where there is none."""
    run: ToolRun | None = None
    """The run of its program; None where programs are not run, or it has none."""
    right: bool = False
    """Whether the answer is the reference's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MathState:
    """A value: copied by `dataclasses.replace`, never mutated."""

    recorded_name: ClassVar[str] = "State"
    problem: Problem
    reference: str
    transcript: tuple[MathUtterance, ...] = ()
    over: bool = False

    def latest(self, role: str) -> MathUtterance | None:
        """The role's last utterance."""
        return next((entry for entry in reversed(self.transcript) if entry.role == role), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MathObservation:
    """The observation of a role."""

    role: str
    problem: str
    """The text of the problem; in few words in the compact rendering, and "" for a role that doesn't see it
    there."""
    transcript: tuple[MathUtterance, ...]
    """All that was written before, each with `turn`, `role`, `text`, `answer`, `run`."""
    shown: str
    """The message that the role goes on from in the compact rendering; "" for none."""
    writes: Writes
    last: bool
    """Whether it is the role's last action of the turn."""
    rendering: Rendering
    repairs: bool = False
    """Whether it is to repair its last program, which did not finish."""


def unfinished(transcript: Sequence[MathUtterance]) -> ToolRun | None:
    """The run of the code executor's last program, where that ended with an error, by a limit, or by killing
    its sandbox; None where it finished, or where there was none."""
    runs = [entry.run for entry in transcript if entry.role == "code_executor" and entry.run is not None]
    return runs[-1] if runs and runs[-1].problem else None
