"""Assignments of Sudoku and their effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.plugins.envs.sudoku.grid import Grid, Puzzle

Assignment = tuple[int, int, int]
"""(row, column, digit), as written: the cell or the digit may not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """The effect of a message."""

    end: Grid
    assignments: tuple[Assignment, ...]
    """As written, without those beyond `max_cells`."""
    written: int
    """The number of assignments in the message, those beyond `max_cells` included."""
    tried: int = 0
    """The number of assignments played or refused; those after the solution or a stop are not tried."""
    illegal: tuple[tuple[int, str], ...] = ()
    """(number of the assignment counted from 1, `outside`, `digit` or `given`) of every refused one."""
    idle: int = 0
    """Assignments of the right digit to a cell that already had it."""
    gained: int = 0
    """Cells that are right at the end and weren't at the start."""
    readable: bool = True

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
    within_limit, after, tried, idle = tuple(assignments[:limit]), list(grid), 0, 0
    wrong = still_wrong(puzzle, grid)
    illegal: list[tuple[int, str]] = []
    for number, (row, column, digit) in enumerate(within_limit, 1):
        if not wrong:
            break
        tried = number
        reason = refusal(puzzle, (row, column, digit))
        if reason:
            illegal.append((number, reason))
            if not skip:
                break
            continue
        cell = row * puzzle.size + column
        right = puzzle.solution[cell]
        idle += after[cell] == digit == right
        wrong += int(after[cell] == right) - int(digit == right)
        after[cell] = digit
    gained = sum(was != right == now for was, now, right in zip(grid, after, puzzle.solution, strict=True))
    return Fill(
        end=tuple(after),
        assignments=within_limit,
        written=len(assignments),
        tried=tried,
        illegal=tuple(illegal),
        idle=idle,
        gained=gained,
    )


def still_wrong(puzzle: Puzzle, grid: Grid) -> int:
    """The number of cells that are empty or not as in the solution."""
    return sum(digit != right for digit, right in zip(grid, puzzle.solution, strict=True))
