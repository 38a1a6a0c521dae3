"""The values of Sudoku: plans, states and observations."""

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
    """The message of the planner or the tool, and its effect on a fork."""

    author: Literal["planner", "tool"] = "planner"
    fork: Fill | None = None
    """The fill of the plan alone; None where it couldn't be read."""
    run: ToolRun | None = None
    """The run of the tool's program; None for a planner."""

    @property
    def assignments(self) -> tuple[Assignment, ...] | None:
        """The assignments as written; None where they couldn't be read."""
        return self.fork.assignments if self.fork is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A value: copied by `dataclasses.replace`, never mutated."""

    puzzle: Puzzle
    grid: Grid
    """The clues and the filled digits, right or wrong."""
    turn: int = 0
    """Messages that filled cells so far."""
    plan: Plan | None = None
    """The plan of the current turn; None before the planner acted."""
    last_plan: Plan | None = None
    """The plan that the last mover saw."""
    last_fill: Fill | None = None
    last_mover: str = ""

    @property
    def solved(self) -> bool:
        return self.grid == self.puzzle.solution

    @property
    def left(self) -> int:
        """The number of cells that are empty or wrong."""
        return still_wrong(self.puzzle, self.grid)

    @property
    def clashing(self) -> frozenset[int]:
        """Filled cells (no clues) with an equal digit in their row, column or box."""
        return frozenset(
            cell for cell in conflicts(self.puzzle.size, self.grid) if not self.puzzle.clues[cell]
        )

    @property
    def open(self) -> tuple[int, ...]:
        """Cells that are empty or clash, whatever the oracle knows. There are none exactly when the puzzle is
        solved, since a full grid without a clash is the solution."""
        clashing = self.clashing
        return tuple(cell for cell, digit in enumerate(self.grid) if not digit or cell in clashing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The observation of a role."""

    role: str
    turn: int
    size: int
    open: tuple[Cell, ...]
    """Cells that are empty or clash, in reading order."""
    clues: Grid | None
    """The clues, 0 elsewhere; None if the role doesn't see the grid."""
    grid: Grid | None
    """The clues and the filled digits, 0 for an empty cell; None as above."""
    clashing: tuple[Cell, ...] | None
    """None as above."""
    plan: tuple[Assignment, ...] | None
    """The proposal of this turn; None where none can be read, or the role sees none."""
    program: ToolRun | None
    """The run of the tool's program, for the role `plan`."""
    plan_language: PlanLanguage
    rendering: Rendering
    max_cells: int | None
