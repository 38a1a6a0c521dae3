"""The values of Sudoku: what the game is in, and what a role sees of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.plugins.envs.common.code import ToolRun
from coterie.plugins.envs.common.grid import Cell
from coterie.plugins.envs.common.parsing import Rendering
from coterie.plugins.envs.sudoku.fills import Assignment, Fill, still_wrong
from coterie.plugins.envs.sudoku.grid import Grid, Puzzle, conflicts
from coterie.plugins.envs.sudoku.messages import PlanLanguage


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the planner or the tool handed over, and what became of it on a fork."""

    author: Literal["planner", "tool"] = "planner"
    fork: Fill | None = None
    """The grid that the plan alone would make; None where it couldn't be read."""
    run: ToolRun | None = None
    """What the tool's program did; None of a planner."""

    @property
    def assignments(self) -> tuple[Assignment, ...] | None:
        """As written; None where they couldn't be read."""
        return self.fork.assignments if self.fork is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A value: copied by `dataclasses.replace`, never mutated."""

    puzzle: Puzzle
    grid: Grid
    """The clues and what was filled in, right or wrong."""
    turn: int = 0
    """Messages that filled cells so far."""
    plan: Plan | None = None
    """Of the turn that is played; None before the planner spoke."""
    last_plan: Plan | None = None
    """The plan that the last message was written under."""
    last_fill: Fill | None = None
    last_mover: str = ""

    @property
    def solved(self) -> bool:
        return self.grid == self.puzzle.solution

    @property
    def left(self) -> int:
        """Cells that are empty or wrong."""
        return still_wrong(self.puzzle, self.grid)

    @property
    def clashing(self) -> frozenset[int]:
        """Filled cells (no clues) whose digit stands in their row, column or box once more."""
        return frozenset(
            cell for cell in conflicts(self.puzzle.size, self.grid) if not self.puzzle.clues[cell]
        )

    @property
    def open(self) -> tuple[int, ...]:
        """Cells that are visibly not done: empty, or clashing. Never what the oracle knows to be wrong. It is
        empty when the puzzle is solved and only then, for a full grid without a clash is the solution."""
        clashing = self.clashing
        return tuple(cell for cell, digit in enumerate(self.grid) if not digit or cell in clashing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a role sees."""

    role: str
    turn: int
    size: int
    open: tuple[Cell, ...]
    """Cells that are empty or clash, in reading order."""
    clues: Grid | None
    """The given digits, 0 elsewhere; None where the role doesn't see the grid."""
    grid: Grid | None
    """The given digits and the filled ones, 0 where it is empty; None as above."""
    clashing: tuple[Cell, ...] | None
    """None as above."""
    plan: tuple[Assignment, ...] | None
    """The proposal in this turn; None where there is none that can be read, or the role is given none."""
    program: ToolRun | None
    """The tool's, for the role `plan`."""
    plan_language: PlanLanguage
    rendering: Rendering
    max_cells: int | None
