"""The world of Sudoku: grids, the solver that is the oracle, and the generation of puzzles.

A grid is a tuple of size * size ints in reading order, 0 where a cell is empty. A set of digits is an
int whose bit d - 1 is set where digit d is in it, so the candidates of a cell are two operations.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import isqrt

from coterie.core.errors import ConfigError
from coterie.core.types.splits import Split
from coterie.plugins.envs.common.grid import Cell
from coterie.plugins.envs.common.turn_game import Generated, split_of

Grid = tuple[int, ...]

FEWEST_CLUES = {4: 4, 9: 17}
"""Below these no puzzle has a unique solution (9x9: McGuire, Tugemann and Civario, arXiv 1201.0749)."""
DEFAULT_BLANKS = {4: 6, 9: 40, 16: 90}

SEARCH = 3000
"""Nodes after which the drawing of a full grid starts anew: a search that went wrong early hardly ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """One problem: the given digits, and the only grid that keeps them."""

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
    place, everything = units(size), (1 << size) - 1
    rows, columns, boxes = [0] * size, [0] * size, [0] * size
    found = list(grid)
    for cell, digit in enumerate(grid):
        if digit:
            (row, column, box), bit = place[cell], 1 << digit - 1
            if (rows[row] | columns[column] | boxes[box]) & bit:
                return
            rows[row] |= bit
            columns[column] |= bit
            boxes[box] |= bit
    left = [cell for cell, digit in enumerate(grid) if not digit]
    spent = 0

    def search() -> Iterator[Grid]:
        nonlocal spent
        if not left:
            yield tuple(found)
            return
        spent += 1
        if nodes is not None and spent > nodes:
            raise _GaveUp
        fewest, at, options = size + 1, 0, 0
        for number, cell in enumerate(left):
            row, column, box = place[cell]
            free = everything & ~(rows[row] | columns[column] | boxes[box])
            count = free.bit_count()
            if count < fewest:
                fewest, at, options = count, number, free
                if count < 2:
                    break
        cell = left[at]
        left[at] = left[-1]
        left.pop()
        row, column, box = place[cell]
        for digit in order[cell] if order is not None else range(1, size + 1):
            bit = 1 << digit - 1
            if options & bit and (cell, digit) != barred:
                rows[row] |= bit
                columns[column] |= bit
                boxes[box] |= bit
                found[cell] = digit
                yield from search()
                rows[row] ^= bit
                columns[column] ^= bit
                boxes[box] ^= bit
        left.append(cell)
        left[at], left[-1] = left[-1], left[at]

    yield from search()


def solve(size: int, grid: Sequence[int]) -> Grid:
    """The oracle: the only grid that keeps the digits of `grid`.

    Raises:
        ValueError: there is none, or more than one.
    """
    found = list(islice(solutions(size, grid), 2))
    if len(found) != 1:
        raise ValueError("the clues have no solution" if not found else "the clues have several solutions")
    return found[0]


def conflicts(size: int, grid: Sequence[int]) -> frozenset[int]:
    """Cells whose digit stands in their row, column or box once more."""
    seen: dict[tuple[int, int, int], list[int]] = {}
    for cell, (digit, unit) in enumerate(zip(grid, units(size), strict=True)):
        if digit:
            for kind, number in enumerate(unit):
                seen.setdefault((kind, number, digit), []).append(cell)
    return frozenset(cell for cells in seen.values() if len(cells) > 1 for cell in cells)


def solved(size: int, grid: Sequence[int], clues: Sequence[int]) -> bool:
    """Full, valid, and keeps the clues; asked of no oracle."""
    kept = all(digit in (0, grid[cell]) for cell, digit in enumerate(clues))
    return kept and all(1 <= digit <= size for digit in grid) and not conflicts(size, grid)


# ---------------------------------------------------------------------------------------------- generation


def line(grid: Sequence[int]) -> str:
    """The digits in reading order, `.` for an empty cell, blanks between them."""
    return " ".join(str(digit) if digit else "." for digit in grid)


def fingerprints(puzzle: Puzzle) -> Mapping[str, str]:
    """What no two splits may share: the puzzle, and its solution."""
    return {"content": line(puzzle.clues), "solution": line(puzzle.solution)}


def belongs(solution: Sequence[int]) -> Split:
    """The split of a solution: a function of it alone. There are only 288 full grids of size 4, so a split
    by the puzzle would let a model meet the answers of the test split in training."""
    return split_of(line(solution))


@dataclass(frozen=True, slots=True)
class Puzzles(Generated):
    """Puzzles with one solution, split by that solution.

    A full grid is drawn by search in a random order and its digits are renamed at random until it belongs
    to the split; then cells are emptied in a random order wherever the solution stays unique.
    """

    size: int
    blanks: int
    path: str = "env"

    def draw(self, index: int) -> Puzzle:
        attempts = 20_000 // self.size**2
        for attempt in range(attempts):
            place = f"sudoku|{self.size}|{self.split}|{self.seed}|{index}|{attempt}"
            grid = _drawn(self.size, place, self.split)
            clues = None if grid is None else _dug(self.size, grid, self.blanks, place)
            if grid is not None and clues is not None:
                return Puzzle(size=self.size, clues=clues, solution=grid)
        raise ConfigError(
            f"no puzzle for split '{self.split}' in {attempts} draws",
            path=f"{self.path}.blanks",
            why=f"{self.size}x{self.size} grids with {self.blanks} empty cells hardly ever have one solution",
            fix="use fewer blanks",
        )


def _shuffled(count: int, place: str) -> list[int]:
    """0..count - 1 in an order that is a function of `place`."""
    layout = struct.Struct(f"<{count}I")
    draws = layout.unpack(hashlib.shake_128(place.encode()).digest(layout.size))
    return sorted(range(count), key=draws.__getitem__)


def _drawn(size: int, place: str, split: Split) -> Grid | None:
    """A full grid of the split; None where this draw found none."""
    cells = size * size
    layout = struct.Struct(f"<{cells * size}H")
    draws = layout.unpack(hashlib.shake_128(f"{place}|fill".encode()).digest(layout.size))
    digits = range(1, size + 1)
    order = [
        sorted(digits, key=lambda digit, base=cell * size - 1: draws[base + digit])  # type: ignore[misc]
        for cell in range(cells)
    ]
    try:
        grid = next(solutions(size, (0,) * cells, order=order, nodes=SEARCH))
    except _GaveUp:
        return None
    for renaming in range(64):
        names = _shuffled(size, f"{place}|rename {renaming}")
        renamed = tuple(names[digit - 1] + 1 for digit in grid)
        if belongs(renamed) == split:
            return renamed
    return None


def _dug(size: int, grid: Grid, blanks: int, place: str) -> Grid | None:
    """The grid with that many cells emptied and still one solution; None where this order leads nowhere.

    The same as emptying cell by cell, for a puzzle with more clues than a unique one is unique as well; but
    the many cells that go at once cost one search.
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

    order = _shuffled(size * size, f"{place}|dig")
    at = 0
    while left and at < len(order):
        chunk = order[at : at + left]
        at += len(chunk)
        empty(chunk)
    return None if left else tuple(clues)


def _unique(size: int, clues: Sequence[int], grid: Grid, emptied: Sequence[int]) -> bool:
    """Whether `grid` is the only solution, given that it was before those cells were emptied."""
    if len(emptied) == 1:
        cell = emptied[0]
        return next(solutions(size, clues, barred=(cell, grid[cell])), None) is None
    return len(list(islice(solutions(size, clues), 2))) == 1
