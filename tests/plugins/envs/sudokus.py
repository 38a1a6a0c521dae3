"""Drawn puzzles for the tests of Sudoku, and checks that share nothing with its solver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any

from coterie.core.types import Task
from coterie.plugins.envs.sudoku.grid import Puzzle, solve


def puzzle(*rows: str) -> Puzzle:
    """Rows of digits, `.` for an empty cell."""
    clues = tuple(0 if mark == "." else int(mark) for mark in "".join(rows))
    return Puzzle(size=len(rows), clues=clues, solution=solve(len(rows), clues))


def start(env: Any, *rows: str) -> Any:
    return env.reset(Task(id="t", payload=puzzle(*rows)), 0)


EASY = ("12..", "34.2", "..43", ".321")
"""Empty: r0c2=3 r0c3=4 r1c2=1 r2c0=2 r2c1=1 r3c0=4."""
ORACLE = "r0c2=3 r0c3=4 r1c2=1 r2c0=2 r2c1=1 r3c0=4"


def valid(grid: Sequence[int], size: int, side: int) -> bool:
    """Every row, column and box holds every digit: by sets, from the definition."""
    rows = [set(grid[row * size : (row + 1) * size]) for row in range(size)]
    columns = [set(grid[column::size]) for column in range(size)]
    boxes = [
        {grid[(top + row) * size + left + column] for row in range(side) for column in range(side)}
        for top in range(0, size, side)
        for left in range(0, size, side)
    ]
    return all(unit == set(range(1, size + 1)) for unit in rows + columns + boxes)


def every_small_grid() -> list[tuple[int, ...]]:
    """All full grids of size 4, from rows: two that make a band, two bands that make columns."""
    lines = list(permutations((1, 2, 3, 4)))
    bands = [a + b for a in lines for b in lines if {*a[:2], *b[:2]} == {*a[2:], *b[2:]} == {1, 2, 3, 4}]
    return [a + b for a in bands for b in bands if valid(a + b, 4, 2)]


def completions(clues: Sequence[int], size: int, side: int) -> Iterator[tuple[int, ...]]:
    """All full grids that keep the clues: exact cover by sets (Knuth's algorithm X), slow and plain."""

    def demands(row: int, column: int, digit: int) -> list[tuple[str, int, int]]:
        box = row // side * side + column // side
        return [("cell", row, column), ("row", row, digit), ("column", column, digit), ("box", box, digit)]

    chances: dict[Any, set[Any]] = {}
    for row in range(size):
        for column in range(size):
            given = clues[row * size + column]
            for digit in [given] if given else range(1, size + 1):
                for demand in demands(row, column, digit):
                    chances.setdefault(demand, set()).add((row, column, digit))
    if len(chances) != 4 * size * size:
        return

    def take(chosen: tuple[int, int, int]) -> list[Any]:
        taken = []
        for demand in demands(*chosen):
            for rival in chances[demand]:
                for other in demands(*rival):
                    if other != demand:
                        chances[other].discard(rival)
            taken.append(chances.pop(demand))
        return taken

    def give_back(chosen: tuple[int, int, int], taken: list[Any]) -> None:
        for demand in reversed(demands(*chosen)):
            chances[demand] = taken.pop()
            for rival in chances[demand]:
                for other in demands(*rival):
                    if other != demand:
                        chances[other].add(rival)

    def search(placed: list[tuple[int, int, int]]) -> Iterator[tuple[int, ...]]:
        if not chances:
            yield tuple(digit for _, _, digit in sorted(placed))
            return
        demand = min(chances, key=lambda one: len(chances[one]))
        for chosen in list(chances[demand]):
            taken = take(chosen)
            yield from search([*placed, chosen])
            give_back(chosen, taken)

    yield from search([])
