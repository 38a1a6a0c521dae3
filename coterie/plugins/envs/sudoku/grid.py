"""Sudoku grids: the solver, which is the oracle, and the generation of puzzles.

A grid is a tuple of size * size ints in reading order, 0 for an empty cell. A set of digits is an int with
bit d - 1 set for digit d, so that the possible digits of a cell take two operations.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import isqrt
from typing import Any

from coterie.core.types.splits import Split
from coterie.plugins.envs.board.grid import Cell
from coterie.plugins.envs.common.generated import split_of

Grid = tuple[int, ...]

FEWEST_CLUES = {4: 4, 9: 17}
"""With fewer clues no solution is unique (9x9: McGuire, Tugemann and Civario, arXiv 1201.0749)."""
DEFAULT_BLANKS = {4: 6, 9: 40, 16: 90}

SEARCH = 3000
"""Nodes after which the draw of a full grid starts again: a search with a wrong early choice hardly ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """One problem: the clues, and the only full valid grid that keeps them."""

    size: int
    clues: Grid
    solution: Grid

    @property
    def blanks(self) -> int:
        return self.clues.count(0)

    def cell(self, index: int) -> Cell:
        return divmod(index, self.size)

    def index(self, cell: Cell) -> int | None:
        """The cell as an int; None outside the grid."""
        row, column = cell
        return row * self.size + column if 0 <= row < self.size and 0 <= column < self.size else None


@lru_cache(maxsize=8)
def units(size: int) -> tuple[tuple[int, int, int], ...]:
    """(row, column, box) of every cell; boxes are isqrt(size) wide and counted in reading order."""
    box = isqrt(size)
    return tuple(
        (row, column, row // box * box + column // box) for row in range(size) for column in range(size)
    )


# ------------------------------------------------------------------------------------------------- solving


class _GaveUp(Exception):
    """A search took more nodes than it was allowed."""


def solutions(
    size: int,
    grid: Sequence[int],
    *,
    order: Sequence[Sequence[int]] | None = None,
    barred: tuple[int, int] | None = None,
    nodes: int | None = None,
) -> Iterator[Grid]:
    """Every full valid grid that keeps the digits of `grid`, most constrained cell first.

    Args:
        order: for each cell the digits in the order in which they are tried; default 1, 2, ...
        barred: (cell, digit) that no solution may have.
        nodes: cells that may be filled on the way.

    Raises:
        _GaveUp: it took more than `nodes`.
    """
    search = _Search(size, grid, order, barred, nodes)
    if search.valid:
        yield from search.completions()


class _Search:
    """A depth-first search for the completions of a grid; arguments as in `solutions`."""

    def __init__(
        self,
        size: int,
        grid: Sequence[int],
        order: Sequence[Sequence[int]] | None,
        barred: tuple[int, int] | None,
        nodes: int | None,
    ) -> None:
        self._units, self._digits = units(size), range(1, size + 1)
        self._order, self._barred, self._nodes = order, barred, nodes
        self._rows, self._columns, self._boxes = [0] * size, [0] * size, [0] * size
        """The set of digits in every row, column and box."""
        self._grid = [0] * len(grid)
        self._empty = [cell for cell, digit in enumerate(grid) if not digit]
        self._spent = 0
        self.valid = all(self._write(cell, digit) for cell, digit in enumerate(grid) if digit)
        """Whether the digits of the grid keep the rules."""

    def completions(self) -> Iterator[Grid]:
        """The completions of the grid as it is filled now."""
        if not self._empty:
            yield tuple(self._grid)
            return
        self._spent += 1
        if self._nodes is not None and self._spent > self._nodes:
            raise _GaveUp
        at = self._most_constrained()
        empty = self._empty
        cell = empty[at]
        empty[at] = empty[-1]
        empty.pop()
        for digit in self._order[cell] if self._order is not None else self._digits:
            if (cell, digit) != self._barred and self._write(cell, digit):
                yield from self.completions()
                self._erase(cell, digit)
        empty.append(cell)
        empty[at], empty[-1] = empty[-1], empty[at]

    def _most_constrained(self) -> int:
        """The index in `_empty` of the first cell with the fewest possible digits."""
        rows, columns, boxes, places = self._rows, self._columns, self._boxes, self._units
        size = len(rows)
        fewest, at = size + 1, 0
        for index, cell in enumerate(self._empty):
            row, column, box = places[cell]
            count = size - (rows[row] | columns[column] | boxes[box]).bit_count()
            if count < fewest:
                fewest, at = count, index
                if count < 2:
                    break
        return at

    def _write(self, cell: int, digit: int) -> bool:
        """Write a digit into an empty cell; False where its row, column or box already has it."""
        (row, column, box), bit = self._units[cell], 1 << digit - 1
        if (self._rows[row] | self._columns[column] | self._boxes[box]) & bit:
            return False
        self._rows[row] |= bit
        self._columns[column] |= bit
        self._boxes[box] |= bit
        self._grid[cell] = digit
        return True

    def _erase(self, cell: int, digit: int) -> None:
        (row, column, box), bit = self._units[cell], 1 << digit - 1
        self._rows[row] ^= bit
        self._columns[column] ^= bit
        self._boxes[box] ^= bit


def solve(size: int, grid: Sequence[int]) -> Grid:
    """The oracle: the only grid that keeps the digits of `grid`.

    Raises:
        ValueError: there is none, or more than one.
    """
    first_two = list(islice(solutions(size, grid), 2))
    if len(first_two) != 1:
        raise ValueError(
            "the clues have no solution" if not first_two else "the clues have several solutions"
        )
    return first_two[0]


def conflicts(size: int, grid: Sequence[int]) -> frozenset[int]:
    """The cells with an equal digit in their row, column or box."""
    by_unit: dict[tuple[int, int, int], list[int]] = {}
    for cell, (digit, unit) in enumerate(zip(grid, units(size), strict=True)):
        if digit:
            for kind, number in enumerate(unit):
                by_unit.setdefault((kind, number, digit), []).append(cell)
    return frozenset(cell for cells in by_unit.values() if len(cells) > 1 for cell in cells)


def solved(size: int, grid: Sequence[int], clues: Sequence[int]) -> bool:
    """Whether the grid is full and valid and keeps the clues; by the rules, without the oracle."""
    kept = all(digit in (0, grid[cell]) for cell, digit in enumerate(clues))
    return kept and all(1 <= digit <= size for digit in grid) and not conflicts(size, grid)


# ---------------------------------------------------------------------------------------------- generation


def line(grid: Sequence[int]) -> str:
    """The digits in reading order, separated by spaces, `.` for an empty cell."""
    return " ".join(str(digit) if digit else "." for digit in grid)


def fingerprints(puzzle: Puzzle) -> Mapping[str, str]:
    """What no two splits may share: the puzzle, and its solution."""
    return {"content": line(puzzle.clues), "solution": line(puzzle.solution)}


def split_of_solution(solution: Sequence[int]) -> Split:
    """The split of a solution, a function of it alone. There are only 288 full grids of size 4, so with a
    split by puzzle a model would see the answers of the test split in training."""
    return split_of(line(solution))


def drawn_puzzle(purpose: str, split: Split, size: int, blanks: int) -> Puzzle | None:
    """A random puzzle with one solution that belongs to the split, a function of `purpose`; None where this
    draw gives none.

    A full grid is drawn by search in a random order, and its digits are permuted at random until it belongs
    to the split; then cells are emptied in a random order wherever the solution stays unique.
    """
    grid = _full_grid(size, purpose, split)
    clues = None if grid is None else _clues(size, grid, blanks, purpose)
    return None if grid is None or clues is None else Puzzle(size=size, clues=clues, solution=grid)


def _shuffled(count: int, purpose: str) -> list[int]:
    """0..count - 1 in an order that is a function of `purpose`."""
    layout = struct.Struct(f"<{count}I")
    draws = layout.unpack(hashlib.shake_128(purpose.encode()).digest(layout.size))
    return sorted(range(count), key=draws.__getitem__)


def _full_grid(size: int, purpose: str, split: Split) -> Grid | None:
    """A random full grid of the split; None where this draw gives none."""
    cells = size * size
    layout = struct.Struct(f"<{cells * size}H")
    draws = layout.unpack(hashlib.shake_128(f"{purpose}|fill".encode()).digest(layout.size))
    digits = range(1, size + 1)
    order = [
        sorted(digits, key=lambda digit, base=cell * size - 1: draws[base + digit])  # type: ignore[misc]
        for cell in range(cells)
    ]
    try:
        grid = next(solutions(size, (0,) * cells, order=order, nodes=SEARCH))
    except _GaveUp:
        return None
    for number in range(64):
        permutation = _shuffled(size, f"{purpose}|rename {number}")
        renamed = tuple(permutation[digit - 1] + 1 for digit in grid)
        if split_of_solution(renamed) == split:
            return renamed
    return None


def _clues(size: int, grid: Grid, blanks: int, purpose: str) -> Grid | None:
    """The grid with that many cells emptied and still one solution; None where the random order allows none.

    The result is that of emptying cell by cell, since more clues keep a unique solution unique; but emptying
    many cells at once costs one search.
    """
    clues, left = list(grid), blanks

    def empty(cells: Sequence[int]) -> None:
        nonlocal left
        for cell in cells:
            clues[cell] = 0
        if _unique(size, clues, grid, cells):
            left -= len(cells)
            return
        for cell in cells:
            clues[cell] = grid[cell]
        if len(cells) > 1:
            half = len(cells) // 2
            empty(cells[:half])
            empty(cells[half:])

    order = _shuffled(size * size, f"{purpose}|dig")
    at = 0
    while left and at < len(order):
        chunk = order[at : at + left]
        at += len(chunk)
        empty(chunk)
    return None if left else tuple(clues)


def _unique(size: int, clues: Sequence[int], grid: Grid, emptied: Sequence[int]) -> bool:
    """Whether `grid` is the only solution, given that it was before these cells were emptied."""
    if len(emptied) == 1:
        cell = emptied[0]
        return next(solutions(size, clues, barred=(cell, grid[cell])), None) is None
    return len(list(islice(solutions(size, clues), 2))) == 1


# ------------------------------------------------------------------------------------------------- records


def record_of(puzzle: Puzzle) -> dict[str, Any]:
    """The puzzle as JSON: `size`, `clues` and `solution`, the grids as lists of rows, 0 for an empty cell."""
    return {
        "size": puzzle.size,
        "clues": _rows(puzzle.size, puzzle.clues),
        "solution": _rows(puzzle.size, puzzle.solution),
    }


def puzzle_of(record: Mapping[str, Any], size: int) -> Puzzle:
    """The puzzle of a record; its field `solution` is optional, and checked.

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
    return Puzzle(size=size, clues=clues, solution=solution)


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
