"""What becomes of a list of assignments in Sudoku."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.plugins.envs.sudoku.grid import Grid, Puzzle

Assignment = tuple[int, int, int]
"""(row, column, digit), as written: cell and digit may not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """What became of a message."""

    end: Grid
    assignments: tuple[Assignment, ...]
    """As written, without those beyond `max_cells`."""
    written: int
    """How many were written, those beyond `max_cells` included."""
    tried: int = 0
    """How many were played or refused; what comes after the solution, or after a stop, is left untried."""
    illegal: tuple[tuple[int, str], ...] = ()
    """(number of the assignment counted from 1, `outside`, `digit` or `given`) where one was refused."""
    idle: int = 0
    """Assignments that wrote the right digit where it stood already."""
    gained: int = 0
    """Cells that are right at the end and were not at the start."""
    readable: bool = True

    @property
    def correct(self) -> float:
        """Share of the assignments that made a cell right for good; those that changed nothing for the
        better or the worse aren't counted."""
        counted = self.tried - self.idle
        return self.gained / counted if counted else 0.0


def refusal(puzzle: Puzzle, assignment: Assignment) -> str:
    """What is wrong with an assignment by the rules; empty: nothing. A wrong digit is legal."""
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
    """Play assignments in order. It ends when the grid is solved, after `limit` assignments, and at the first
    illegal one unless `skip`."""
    read, here, tried, idle = tuple(assignments[:limit]), list(grid), 0, 0
    wrong = still_wrong(puzzle, grid)
    illegal: list[tuple[int, str]] = []
    for number, (row, column, digit) in enumerate(read, 1):
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
        idle += here[cell] == digit == right
        wrong += int(here[cell] == right) - int(digit == right)
        here[cell] = digit
    gained = sum(was != right == now for was, now, right in zip(grid, here, puzzle.solution, strict=True))
    return Fill(
        end=tuple(here),
        assignments=read,
        written=len(assignments),
        tried=tried,
        illegal=tuple(illegal),
        idle=idle,
        gained=gained,
    )


def still_wrong(puzzle: Puzzle, grid: Grid) -> int:
    """Cells that are empty or not as in the solution."""
    return sum(one != other for one, other in zip(grid, puzzle.solution, strict=True))
