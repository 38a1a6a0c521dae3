"""Sudoku's tasks as records, for `coterie data` and for task files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.core.types import Task
from coterie.plugins.envs.sudoku.grid import Grid, Puzzle, solve


def record(task: Task) -> dict[str, Any]:
    """The task as JSON: `size`, `clues` and `solution`, the grids as lists of rows, 0 for an empty cell."""
    puzzle: Puzzle = task.payload
    return {
        "size": puzzle.size,
        "clues": _rows(puzzle.size, puzzle.clues),
        "solution": _rows(puzzle.size, puzzle.solution),
    }


def task_of(record: Mapping[str, Any], id: str, size: int) -> Task:
    """The task of a record; its field `solution` is optional, and checked.

    Raises:
        ValueError: the record is no Sudoku of this size; its clues have no solution, several, or another one.
    """
    if "clues" not in record:
        raise ValueError(f"the record has no field 'clues' (fields: {', '.join(record) or 'none'})")
    clues = _grid(record["clues"], size, "clues")
    if 0 not in clues:
        raise ValueError("no cell of the clues is empty")
    solution = solve(size, clues)
    given = record.get("solution")
    if given is not None and _grid(given, size, "solution") != solution:
        raise ValueError("its 'solution' is not the solution of its clues")
    return Task(id=id, payload=Puzzle(size=size, clues=clues, solution=solution))


def _rows(size: int, grid: Grid) -> list[list[int]]:
    return [list(grid[start : start + size]) for start in range(0, size * size, size)]


def _grid(rows: Any, size: int, field: str) -> Grid:
    def valid(digit: Any) -> bool:
        return isinstance(digit, int) and not isinstance(digit, bool) and 0 <= digit <= size

    def valid_row(row: Any) -> bool:
        return isinstance(row, Sequence) and len(row) == size and all(map(valid, row))

    if not (isinstance(rows, Sequence) and len(rows) == size and all(map(valid_row, rows))):
        raise ValueError(f"'{field}' is not {size} rows of {size} whole numbers from 0 to {size}")
    return tuple(int(digit) for row in rows for digit in row)
