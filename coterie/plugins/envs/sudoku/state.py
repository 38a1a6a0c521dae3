"""The values of Sudoku, and its prompts: words at stable places, or English with a picture.

In the compact form the n-th word after the role is the n-th cell: a digit, `?3` for one that clashes, or the
cell's own name where it is empty. So a model with one token per word learns position and content together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any, ClassVar

from coterie.plugins.envs.board.grid import Cell
from coterie.plugins.envs.board.parsing import Wording, cell_word
from coterie.plugins.envs.board.values import BoardObservation, BoardState
from coterie.plugins.envs.common.teams import Rendering
from coterie.plugins.envs.sudoku import messages
from coterie.plugins.envs.sudoku.grid import Grid, Puzzle, conflicts
from coterie.plugins.envs.sudoku.messages import (
    NOTHING,
    PlanLanguage,
    assignment_word,
    plan_word,
    still_wrong,
)

WORDING = Wording(
    item="assignment",
    items="assignments",
    word=assignment_word,
    none="nothing",
    most_listed=256,  # as many as the largest grid has cells
    reasons={
        "outside": "names a cell outside the grid",
        "digit": "is no digit of this grid",
        "given": "would change a given digit",
    },
    most_refused=10,
    unread="; the grid is as it was",
    nothing="{who} filled no cell last turn.",
    stopped="The rest was not played.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SudokuState(BoardState):
    """A grid that is filled. Each message that moves is a fill."""

    puzzle: Puzzle
    grid: Grid
    """The clues and the filled digits, right or wrong."""
    recorded_as: ClassVar[str] = (
        "State(puzzle, grid, turn, plan, last_plan, last_fill=last_effect, last_mover)"
    )

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
class SudokuObservation(BoardObservation):
    """The observation of a role. `plan` is the proposal of this turn; None where none can be read, or the
    role sees none."""

    size: int
    open: tuple[Cell, ...]
    """Cells that are empty or clash, in reading order."""
    clues: Grid | None
    """The clues, 0 elsewhere; None if the role doesn't see the grid."""
    grid: Grid | None
    """The clues and the filled digits, 0 for an empty cell; None as above."""
    clashing: tuple[Cell, ...] | None
    """None as above."""
    plan_language: PlanLanguage
    max_cells: int | None
    wording: ClassVar[Wording] = WORDING

    def read(self, text: str, rendering: Rendering) -> tuple[Any, ...]:
        """Assignments as (row, column, digit)."""
        if self.role == "planner" and rendering == "compact":
            return messages.read_plan(text, self.open, self.size, self.plan_language)
        return messages.read_assignments(text, rendering, self.size, self.grid)

    def compact(self) -> str:
        """`planner 1 r0c1 3 ?3 ... :`; `executor r0c1 b r2c3 - :` for an executor that doesn't see the grid,
        `executor 1 r0c1 3 ?3 ... plan r0c1 b r2c3 - :` for one that does."""
        words = [self.role, *self._cells()]
        if self.role == "executor":
            words += ["plan"] * (self.grid is not None) + self._planned()
        return " ".join([*words, ":"])

    def _cells(self) -> list[str]:
        if self.grid is None:
            return []
        clashing = set(self.clashing or ())
        words = []
        for index, digit in enumerate(self.grid):
            cell = divmod(index, self.size)
            words.append(cell_word(cell) if not digit else f"?{digit}" if cell in clashing else str(digit))
        return words

    def _planned(self) -> list[str]:
        """Each open cell and the plan's word for it; other cells of a plan in prose come last."""
        digits: dict[Cell, int] = {}
        for row, column, digit in self.plan or ():
            if 0 <= row < self.size and 0 <= column < self.size and 1 <= digit <= self.size:
                digits[row, column] = digit
        words = []
        for cell in (*self.open, *(cell for cell in digits if cell not in self.open)):
            word = plan_word(digits[cell], self.plan_language) if cell in digits else NOTHING
            words += [cell_word(cell), word]
        return words

    def board_lines(self) -> list[str]:
        """The picture if the role sees the grid, else the open cells."""
        size, box = self.size, isqrt(self.size)
        lines = [
            f"Turn {self.turn + 1}. A Sudoku of {size} rows (r0 at the top) and {size} columns (c0 at the "
            f"left), with boxes of {box} by {box} and the digits 1 to {size}."
        ]
        if self.grid is None or self.clues is None:
            return [*lines, f"Cells that are empty or clash: {', '.join(map(cell_word, self.open))}."]
        lines += ["'.' is an empty cell.", "", *picture(size, self.grid), ""]
        filled = [
            (*divmod(index, size), digit)
            for index, digit in enumerate(self.grid)
            if digit and not self.clues[index]
        ]
        if filled:
            words = self.wording.listed(filled)
            lines.append(f"Filled in so far, and open to change: {words}. The others are given.")
        if self.clashing:
            lines.append(f"These clash with an equal digit: {', '.join(map(cell_word, self.clashing))}.")
        return lines

    def plan_lines(self) -> list[str]:
        if self.role != "executor":
            return []
        return [f"The planner says: {self.wording.listed(self.plan or ())}."]

    def task(self) -> str:
        limit = f" (at most {self.max_cells})" if self.max_cells is not None else ""
        return self.asked("[r0c1=3, r2c3=1]", limit=limit, source=", and so is a whole grid")


def picture(size: int, grid: Sequence[int]) -> list[str]:
    """The grid in lines, with rules between the boxes."""
    box, width = isqrt(size), len(str(size))
    rows = []
    for row in range(size):
        words = [f"{digit or '.':>{width}}" for digit in grid[row * size : (row + 1) * size]]
        parts = [" ".join(words[start : start + box]) for start in range(0, size, box)]
        if row and row % box == 0:
            rows.append("-+-".join("-" * len(part) for part in parts))
        rows.append(" | ".join(parts))
    return rows
