"""Assignments of Sudoku and their effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from coterie.plugins.envs.board.effects import Effect, play
from coterie.plugins.envs.sudoku.grid import Grid, Puzzle

Assignment = tuple[int, int, int]
"""(row, column, digit), as written: the cell or the digit may not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill(Effect):
    """The effect of a message: assignments, of which those after the solution are not tried."""

    end: Grid
    idle: int = 0
    """Assignments of the right digit to a cell that already had it."""
    gained: int = 0
    """Cells that are right at the end and weren't at the start."""
    recorded_as: ClassVar[str] = (
        "Fill(end, assignments=items, written, tried, illegal, idle, gained, readable)"
    )

    @property
    def correct(self) -> float:
        """Share of the tried assignments that made a cell right for good; `idle` ones aren't counted."""
        counted = self.tried - self.idle
        return self.gained / counted if counted else 0.0


def refusal(puzzle: Puzzle, assignment: Assignment) -> str:
    """The reason why an assignment breaks the rules; empty: it doesn't. A wrong digit is legal."""
    row, column, digit = assignment
    cell = puzzle.index((row, column))
    if cell is None:
        return "outside"
    if not 1 <= digit <= puzzle.size:
        return "digit"
    return "given" if puzzle.clues[cell] else ""


def fill(
    puzzle: Puzzle, grid: Grid, assignments: Sequence[Assignment], *, limit: int | None, skip: bool
) -> Fill:
    """Play assignments in order, up to the solution, the limit, or (unless `skip`) the first illegal one."""
    after, idle, wrong = list(grid), 0, still_wrong(puzzle, grid)

    def write(assignment: Assignment) -> str:
        nonlocal idle, wrong
        if reason := refusal(puzzle, assignment):
            return reason
        row, column, digit = assignment
        cell = row * puzzle.size + column
        right = puzzle.solution[cell]
        idle += after[cell] == digit == right
        wrong += int(after[cell] == right) - int(digit == right)
        after[cell] = digit
        return ""

    played = play(assignments, write, lambda: not wrong, limit=limit, skip=skip)
    gained = sum(was != right == now for was, now, right in zip(grid, after, puzzle.solution, strict=True))
    return Fill(end=tuple(after), idle=idle, gained=gained, **played)


def still_wrong(puzzle: Puzzle, grid: Grid) -> int:
    """The number of cells that are empty or not as in the solution."""
    return sum(digit != right for digit, right in zip(grid, puzzle.solution, strict=True))
