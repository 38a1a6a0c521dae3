"""Grids of cells: indices, sets of cells as bits, moves, breadth-first search, and rows of text.

A cell is an int, `row * width + column`, rows counted from the top. A set of cells (walls, boxes) is an int
with one bit per cell. So sets have no order, and a breadth-first ring costs a few shifts: a task costs
microseconds instead of milliseconds. The grid has no border cells: beyond its edges is wall.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

MOVES: dict[str, tuple[int, int]] = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
"""Move word -> (rows, columns)."""
OPPOSITE = {"U": "D", "D": "U", "L": "R", "R": "L"}

Cell = tuple[int, int]
"""(row, column), the form in prompts and records."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """The size of a grid, which converts between the two forms of a cell."""

    width: int
    height: int

    def cell(self, index: int) -> Cell:
        """The cell as (row, column)."""
        return divmod(index, self.width)

    def index(self, cell: Cell) -> int | None:
        """The cell as an int; None outside the grid."""
        row, column = cell
        inside = 0 <= row < self.height and 0 <= column < self.width
        return row * self.width + column if inside else None

    def cells(self, mask: int) -> tuple[Cell, ...]:
        """The cells of a set as (row, column), row by row."""
        return tuple(divmod(index, self.width) for index in bits(mask))


def bits(mask: int) -> Iterator[int]:
    """The cells of a set, in ascending order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


@lru_cache(maxsize=256)
def masks(width: int, height: int) -> tuple[int, int, int]:
    """Three sets: all cells; all but the leftmost column; all but the rightmost column."""
    everything = (1 << width * height) - 1
    leftmost = sum(1 << row * width for row in range(height))
    return everything, everything & ~leftmost, everything & ~(leftmost << width - 1)


@lru_cache(maxsize=256)
def neighbours(width: int, height: int) -> tuple[dict[str, int], ...]:
    """For every cell and move the neighbouring cell, -1 beyond the edge."""
    table = []
    for row in range(height):
        for column in range(width):
            by_move = {}
            for move, (rows, columns) in MOVES.items():
                r, c = row + rows, column + columns
                by_move[move] = r * width + c if 0 <= r < height and 0 <= c < width else -1
            table.append(by_move)
    return tuple(table)


def rings(width: int, height: int, blocked: int, start: int) -> Iterator[int]:
    """The sets of cells at distance 0, 1, 2, ... from `start`, without blocked cells (breadth-first
    search)."""
    everything, not_left, not_right = masks(width, height)
    ring = 1 << start
    free = everything & ~blocked & ~ring
    while ring:
        yield ring
        ring = (ring << width | ring >> width | (ring & not_right) << 1 | (ring & not_left) >> 1) & free
        free &= ~ring


def region(width: int, height: int, blocked: int, start: int) -> int:
    """The set of cells that are reachable from `start`."""
    reached = 0
    for ring in rings(width, height, blocked, start):
        reached |= ring
    return reached


# ------------------------------------------------------------------------------------------------- records


def rows_of(record: Mapping[str, Any], marks: str) -> tuple[str, tuple[int, int]]:
    """The field `grid` of a record, a list of rows of text: its marks row by row, and (width, height).

    Raises:
        ValueError: the record has no such field, it is no rectangle, or it has other marks.
    """
    if "grid" not in record:
        raise ValueError(f"the record has no field 'grid' (fields: {', '.join(record) or 'none'})")
    rows = record["grid"]
    rectangular = (
        isinstance(rows, Sequence)
        and not isinstance(rows, str)
        and bool(rows)
        and all(isinstance(row, str) and row and len(row) == len(rows[0]) for row in rows)
    )
    if not rectangular:
        raise ValueError(f"a grid is a list of rows of one length, not {rows!r}")
    text = "".join(rows)
    unknown = sorted(set(text) - set(marks))
    if unknown:
        raise ValueError(f"a grid is made of {' '.join(marks)}, not of {' '.join(unknown)}")
    return text, (len(rows[0]), len(rows))


def check_shape(shape: tuple[int, int], wanted: tuple[int, int]) -> None:
    """Check (width, height) of a record against the environment's; raises ValueError."""
    if shape != wanted:
        (width, height), (columns, rows) = shape, wanted
        raise ValueError(
            f"the grid has {height} rows and {width} columns, the environment {rows} and {columns}"
        )
