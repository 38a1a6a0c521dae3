"""The world of Plan-Path: mazes, their generation, distances, walks and the oracle.

A cell is an int, `row * width + column`, rows counted from the top; a set of cells is an int with one
bit a cell. So a breadth-first search is a few shifts a ring, which is what makes a task cost
microseconds instead of milliseconds.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from coterie.core.errors import ConfigError
from coterie.core.protocols import Split
from coterie.core.types import Task
from coterie.plugins.envs import games

MOVES: dict[str, tuple[int, int]] = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
"""Move word -> (rows, columns)."""

Cell = tuple[int, int]
"""(row, column), as roles and records see it."""

ATTEMPTS = 20_000
"""Rejected draws after which a maze of the wanted kind is said not to exist."""


@dataclass(frozen=True, slots=True)
class Maze:
    """One problem: where the walls are, where it starts, where it should end."""

    width: int
    height: int
    walls: int
    """Bit r * width + c is set where there is a wall."""
    start: int
    goal: int

    def cell(self, index: int) -> Cell:
        return divmod(index, self.width)

    def index(self, cell: Cell) -> int | None:
        """The cell as an int; None outside the grid."""
        row, column = cell
        inside = 0 <= row < self.height and 0 <= column < self.width
        return row * self.width + column if inside else None

    def wall(self, index: int) -> bool:
        return bool(self.walls >> index & 1)

    def distances(self, target: int) -> tuple[int, ...]:
        """Steps from every cell to `target`, -1 where there is no way; shape (height * width,)."""
        return distances(self.width, self.height, self.walls, target)

    def left(self, index: int) -> int:
        """Steps from a cell to the goal."""
        return self.distances(self.goal)[index]

    def wall_cells(self) -> tuple[Cell, ...]:
        """All walls, row by row."""
        return _wall_cells(self.width, self.height, self.walls)

    def neighbour(self, index: int, move: str) -> int | str:
        """The cell one move away, or what is in the way: `wall` or `edge`."""
        row, column = divmod(index, self.width)
        rows, columns = MOVES[move]
        there = self.index((row + rows, column + columns))
        if there is None:
            return "edge"
        return "wall" if self.wall(there) else there


@lru_cache(maxsize=256)
def _masks(width: int, height: int) -> tuple[int, int, int]:
    """All cells; all but the leftmost column; all but the rightmost."""
    everything = (1 << width * height) - 1
    leftmost = sum(1 << row * width for row in range(height))
    return everything, everything & ~leftmost, everything & ~(leftmost << width - 1)


def rings(width: int, height: int, walls: int, start: int) -> Iterator[int]:
    """Breadth-first search from `start`: the cells at distance 0, 1, 2, ..."""
    everything, not_left, not_right = _masks(width, height)
    free = everything & ~walls
    ring = seen = 1 << start
    while ring:
        yield ring
        ring = (
            (ring << width | ring >> width | (ring & not_right) << 1 | (ring & not_left) >> 1) & free & ~seen
        )
        seen |= ring


@lru_cache(maxsize=8192)
def distances(width: int, height: int, walls: int, target: int) -> tuple[int, ...]:
    """Steps from every cell to `target`, -1 where there is no way."""
    out = [-1] * (width * height)
    for distance, ring in enumerate(rings(width, height, walls, target)):
        while ring:
            lowest = ring & -ring
            out[lowest.bit_length() - 1] = distance
            ring ^= lowest
    return tuple(out)


@lru_cache(maxsize=8192)
def _wall_cells(width: int, height: int, walls: int) -> tuple[Cell, ...]:
    return tuple(divmod(cell, width) for cell in range(width * height) if walls >> cell & 1)


def shortest_path(maze: Maze, start: int, target: int | None = None) -> tuple[str, ...]:
    """The oracle: moves of a shortest path to `target` (the goal), of equals the first in U, D, L, R.

    Raises:
        ValueError: there is no way.
    """
    field = maze.distances(maze.goal if target is None else target)
    if field[start] < 0:
        raise ValueError(f"no way from {maze.cell(start)} to the target")
    path, here = [], start
    while field[here]:
        for move in MOVES:
            there = maze.neighbour(here, move)
            if isinstance(there, int) and field[there] == field[here] - 1:
                path.append(move)
                here = there
                break
    return tuple(path)


# --------------------------------------------------------------------------------------------------- walks


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What became of a list of moves."""

    start: int
    end: int
    moves: tuple[str, ...]
    """As written, without those beyond `max_moves`."""
    written: int
    """How many were written, those beyond `max_moves` included."""
    played: int = 0
    """How many moved the walker."""
    illegal: tuple[tuple[int, str], ...] = ()
    """(number of the move or way-point counted from 1, what was in the way) where one was refused."""
    tried: int = 0
    """How many were played or refused; a walk that stops leaves the rest untried."""
    readable: bool = True
    shortest: bool = False
    """At least one move was played, none refused, and each brought the goal one step closer."""


def walk(maze: Maze, start: int, moves: Sequence[str], *, limit: int | None, skip: bool) -> Walk:
    """Play moves. It ends at the goal, after `limit` moves, and at the first illegal move unless `skip`."""
    field = maze.distances(maze.goal)
    read, here, played, tried = tuple(moves[:limit]), start, 0, 0
    illegal: list[tuple[int, str]] = []
    closer = True
    for number, move in enumerate(read, 1):
        if here == maze.goal:
            break
        tried = number
        there = maze.neighbour(here, move)
        if isinstance(there, str):
            illegal.append((number, there))
            if not skip:
                break
            continue
        closer = closer and field[there] == field[here] - 1
        here, played = there, played + 1
    return Walk(
        start=start,
        end=here,
        moves=read,
        written=len(moves),
        played=played,
        illegal=tuple(illegal),
        tried=tried,
        shortest=bool(played) and closer and not illegal,
    )


def along(
    maze: Maze, start: int, waypoints: Sequence[Cell], *, skip: bool
) -> tuple[tuple[str, ...], tuple[tuple[int, str], ...], int]:
    """The moves that visit way-points in turn, each leg on a shortest path; it ends at the goal.

    A way-point is illegal where it is outside the grid, a wall, cut off, or the cell one stands on
    already (naming it says nothing, so it earns nothing).

    Returns:
        The moves; (number, reason) of the illegal way-points; how many way-points were tried.
    """
    here, tried = start, 0
    moves: list[str] = []
    illegal: list[tuple[int, str]] = []
    for number, cell in enumerate(waypoints, 1):
        if here == maze.goal:
            break
        tried = number
        there = _waypoint(maze, here, cell)
        if isinstance(there, str):
            illegal.append((number, there))
            if not skip:
                break
            continue
        leg = shortest_path(maze, here, there)
        passes = _cells(maze, here, leg)
        if maze.goal in passes:
            leg = leg[: passes.index(maze.goal) + 1]
            there = maze.goal
        moves += leg
        here = there
    return tuple(moves), tuple(illegal), tried


def _waypoint(maze: Maze, here: int, cell: Cell) -> int | str:
    """The way-point as a cell, or what is wrong with it."""
    there = maze.index(cell)
    if there is None:
        return "edge"
    if maze.wall(there):
        return "wall"
    if there == here:
        return "here"
    return there if maze.distances(there)[here] >= 0 else "cut off"


def corners(maze: Maze, start: int, moves: Sequence[str]) -> tuple[Cell, ...]:
    """Way-points that say a path exactly: the cells where it turns, and its end."""
    cells = _cells(maze, start, moves)
    return tuple(
        maze.cell(cell)
        for number, cell in enumerate(cells)
        if number + 1 == len(cells) or moves[number] != moves[number + 1]
    )


def _cells(maze: Maze, start: int, moves: Sequence[str]) -> list[int]:
    """The cells entered by legal moves."""
    cells = []
    for move in moves:
        rows, columns = MOVES[move]
        start += rows * maze.width + columns
        cells.append(start)
    return cells


# ---------------------------------------------------------------------------------------------- generation


def content(maze: Maze) -> str:
    """What makes two mazes the same problem."""
    return f"{maze.width}x{maze.height}:{maze.walls:x}:{maze.start}:{maze.goal}"


def split_of(maze: Maze) -> Split:
    """The split that a maze belongs to: a function of its content alone, never of a seed."""
    return games.split_of(content(maze))


@dataclass(frozen=True, slots=True)
class Mazes:
    """The tasks of one split: endless in kind, `count` in number; task i is a function of (split, seed, i).

    Mazes are drawn until one is solvable, far enough, and belongs to the split. On small grids the
    number of contents is finite and two tasks of a split may be the same maze; tasks of two splits never.
    """

    split: Split
    seed: int
    count: int
    width: int
    height: int
    wall_density: float
    min_distance: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return Task(id=f"{self.split}-{index}", payload=self.maze(index))

    def maze(self, index: int) -> Maze:
        cells = self.width * self.height
        layout = struct.Struct(f"<{cells}HII")
        threshold = round(self.wall_density * 65536)
        for attempt in range(ATTEMPTS):
            place = f"plan_path|{self.split}|{self.seed}|{index}|{attempt}"
            *draws, first, second = layout.unpack(hashlib.shake_128(place.encode()).digest(layout.size))
            free = [cell for cell in range(cells) if draws[cell] >= threshold]
            if len(free) < 2:
                continue
            start, goal = free[first % len(free)], free[second % len(free)]
            walls = (1 << cells) - 1 - sum(1 << cell for cell in free)
            maze = Maze(self.width, self.height, walls, start, goal)
            if start != goal and split_of(maze) == self.split and self._far_enough(maze):
                return maze
        raise ConfigError(
            f"no maze for split '{self.split}' in {ATTEMPTS} draws",
            why=f"{self.height}x{self.width} grids with wall density {self.wall_density} hardly ever have a "
            f"start and a goal {self.min_distance} steps apart, or too few of them for three splits",
            mend="use a larger grid, fewer walls, or a smaller min_distance",
        )

    def _far_enough(self, maze: Maze) -> bool:
        for distance, ring in enumerate(rings(maze.width, maze.height, maze.walls, maze.goal)):
            if ring >> maze.start & 1:
                return distance >= self.min_distance
        return False
