"""The values of a grid game: what a message does, plans, states, and what roles see, with its prompt in
English."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

from coterie.plugins.envs.board.grid import Cell
from coterie.plugins.envs.board.parsing import Wording
from coterie.plugins.envs.common.code import ToolRun, program_lines
from coterie.plugins.envs.common.teams import Rendering


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardPlan:
    """The proposal of the planner or the tool, and its effect on a fork."""

    author: Literal["planner", "tool"] = "planner"
    items: tuple[Any, ...] = ()
    """As the planner wrote them, in its language, or as the tool's program printed them."""
    run: ToolRun | None = None
    """The run of the tool's program; None for a planner."""
    fork: Any = None
    """The effect of the plan alone; None where it couldn't be read."""
    recorded_as: ClassVar[str] = "Plan(author, fork, run)"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardState:
    """A value: copied by `dataclasses.replace`, never mutated. A game adds its problem and what messages
    change."""

    turn: int = 0
    """Messages that moved so far."""
    plan: Any = None
    """The plan of the current turn; None before it is proposed."""
    last_plan: Any = None
    """The plan that the last mover saw."""
    last_effect: Any = None
    """The effect of the last message that moved."""
    last_mover: str = ""

    @property
    def left(self) -> int:
        """What is left to do, such as steps to the goal; 0: it is solved."""
        raise NotImplementedError

    @property
    def solved(self) -> bool:
        return self.left == 0


def recorded(value: Any) -> str:
    """A value's text in digests of states, which rollout files have: its repr, where its class says so with
    the names of its first version.

    `recorded_as = "State(maze, turn, last_walk=last_effect)"`: the class and the fields in this order;
    `last_walk` is the attribute `last_effect` now.
    """
    form = getattr(value, "recorded_as", "")
    if not form:
        return repr(value)
    name, fields = _fields(form)
    texts = (f"{field}={recorded(getattr(value, attribute))}" for field, attribute in fields)
    return f"{name}({', '.join(texts)})"


@lru_cache(maxsize=64)
def _fields(form: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The class of a form, and (field, attribute) of each of its fields."""
    name, _, fields = form.removesuffix(")").partition("(")
    pairs = [field.partition("=") for field in fields.split(", ")]
    return name, tuple((field, attribute or field) for field, _, attribute in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardObservation(ABC):
    """The observation of a role, which writes its prompt and reads its message."""

    role: str
    turn: int
    rendering: Rendering
    program: ToolRun | None
    """The run of this turn's program; None if the role sees none."""
    proposal: tuple[Any, ...] | None
    """The items that it printed; None where they can't be read."""
    plan: tuple[Any, ...] | None = None
    """The planner's plan, in its language; () for none; None if the role sees no plan."""
    wording: ClassVar[Wording]
    """How items are written."""

    @abstractmethod
    def compact(self) -> str:
        """The prompt in a few words."""

    @abstractmethod
    def board_lines(self) -> list[str]:
        """Lines of the prompt in English on the board."""

    @abstractmethod
    def task(self) -> str:
        """The last line of the prompt in English: what to write."""

    def read(self, text: str, rendering: Rendering) -> tuple[Any, ...]:
        """The items of the role's message; raises PolicyFault."""
        return self.wording.read_items(text, rendering)

    def prose(self, feedback: tuple[str, ...] = ()) -> str:
        """The prompt in English."""
        proposal = None if self.proposal is None else self.wording.listed(self.proposal)
        program = program_lines(self.program, proposal, self.wording.items)
        return "\n".join([*self.board_lines(), *self.plan_lines(), *program, *feedback, self.task()])

    def plan_lines(self) -> list[str]:
        """The line of the prompt in English on the plan, if the role sees one."""
        if self.plan is None:
            return []
        words = self.plan_words()
        return [
            f"The planner's {self.plan_items()}: {', '.join(words)}."
            if words
            else "The planner named nothing."
        ]

    def plan_items(self) -> str:
        """The plural of what a plan has."""
        return self.wording.items

    def plan_words(self) -> list[str]:
        """The words of the plan; [] for an empty plan."""
        return list(map(self.wording.word, self.plan or ()))

    def asked(self, example: str, *, detail: str = "", limit: str = "", source: str = "") -> str:
        """The line that asks for items, or for a program that prints them.

        Args:
            detail: of the items, after their name.
            limit: of their number; at the end of the line, unless it asks for a program.
            source: of a program's items, after their name and limit.
        """
        items = self.wording.items
        if self.role == "tool":
            return (
                f"Your program, in one ```python block; the last list that it prints, such as {example}, is "
                f"your proposal of {items}{detail}{limit}{source}:"
            )
        whose = f"The {items} that should be played" if self.role == "planner" else f"Your {items}"
        return f"{whose}{detail} as a list such as {example}{limit}:"

    def asked_moves(self, most: int | None, source: str) -> str:
        """The line that asks for moves.

        Args:
            most: moves of a message that are played; None: all.
            source: where a program's moves start.
        """
        limit = f", at most {most}" if most is not None else ""
        return self.asked("[U, R, R]", detail=f" (U, D, L, R{limit})", source=f" from {source}")


def grid_line(turn: int, height: int, width: int) -> str:
    """The first line of a prompt in English on a rectangular grid."""
    return (
        f"Turn {turn + 1}. The grid has {height} rows (r0 at the top) and {width} columns (c0 at the left)."
    )


def pictured(height: int, width: int, marks: Mapping[Cell, str], free: str, space: str = " ") -> list[str]:
    """A grid in lines, with the marks of cells and one for every other cell."""
    return [space.join(marks.get((row, column), free) for column in range(width)) for row in range(height)]
