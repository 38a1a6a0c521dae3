"""The world of Plan-Path: mazes, their generation, distances, walks and the oracle."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from coterie.core.errors import ConfigError
from coterie.core.types.splits import Split
from coterie.plugins.envs.common import turn_game
from coterie.plugins.envs.common.grid import MOVES, Cell, Rectangle, bits, neighbours, rings

ATTEMPTS = 20_000
"""Rejected draws after which generation fails."""


@dataclass(frozen=True, slots=True)
class Maze(Rectangle):
    """One problem: walls, start and goal."""

    walls: int
    """Bit r * width + c is set where cell (r, c) is a wall."""
    start: int
    goal: int

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
        """The cell one move away, or the obstacle: `wall` or `edge`."""
        cell = neighbours(self.width, self.height)[index][move]
        if cell < 0:
            return "edge"
        return "wall" if self.wall(cell) else cell


@lru_cache(maxsize=8192)
def distances(width: int, height: int, walls: int, target: int) -> tuple[int, ...]:
    """Steps from every cell to `target`, -1 where there is no way."""
    out = [-1] * (width * height)
    for distance, ring in enumerate(rings(width, height, walls, target)):
        for cell in bits(ring):
            out[cell] = distance
    return tuple(out)


@lru_cache(maxsize=8192)
def _wall_cells(width: int, height: int, walls: int) -> tuple[Cell, ...]:
    return tuple(divmod(cell, width) for cell in bits(walls))


def shortest_path(maze: Maze, start: int, target: int | None = None) -> tuple[str, ...]:
    """The oracle: moves of a shortest path to `target` (default: the goal); ties go to the first of U, D, L,
    R.

    Raises:
        ValueError: there is no way.
    """
    field = maze.distances(maze.goal if target is None else target)
    if field[start] < 0:
        raise ValueError(f"no way from {maze.cell(start)} to the target")
    path, cell = [], start
    while field[cell]:
        for move in MOVES:
            neighbour = maze.neighbour(cell, move)
            if isinstance(neighbour, int) and field[neighbour] == field[cell] - 1:
                path.append(move)
                cell = neighbour
                break
    return tuple(path)


# --------------------------------------------------------------------------------------------------- walks


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The effect of a list of moves."""

    start: int
    end: int
    moves: tuple[str, ...]
    """As written, without those beyond `max_moves`."""
    written: int
    """The number of moves in the message, those beyond `max_moves` included."""
    played: int = 0
    """The number of legal moves."""
    illegal: tuple[tuple[int, str], ...] = ()
    """(number of the move or way-point counted from 1, obstacle) of every refused one."""
    tried: int = 0
    """The number of moves played or refused; after a stop the rest are not tried."""
    readable: bool = True
    shortest: bool = False
    """At least one move was played, none refused, and each brought the goal one step closer."""


def walk(maze: Maze, start: int, moves: Sequence[str], *, limit: int | None, skip: bool) -> Walk:
    """Play moves up to the goal, the limit, or (unless `skip`) the first illegal move."""
    field = maze.distances(maze.goal)
    within_limit, position, played, tried = tuple(moves[:limit]), start, 0, 0
    illegal: list[tuple[int, str]] = []
    closer = True
    for number, move in enumerate(within_limit, 1):
        if position == maze.goal:
            break
        tried = number
        neighbour = maze.neighbour(position, move)
        if isinstance(neighbour, str):
            illegal.append((number, neighbour))
            if not skip:
                break
            continue
        closer = closer and field[neighbour] == field[position] - 1
        position, played = neighbour, played + 1
    return Walk(
        start=start,
        end=position,
        moves=within_limit,
        written=len(moves),
        played=played,
        illegal=tuple(illegal),
        tried=tried,
        shortest=bool(played) and closer and not illegal,
    )


def along(
    maze: Maze, start: int, waypoints: Sequence[Cell], *, skip: bool
) -> tuple[tuple[str, ...], tuple[tuple[int, str], ...], int]:
    """The moves that visit way-points in order, each leg on a shortest path, up to the goal.

    A way-point is illegal where it is outside the grid, a wall, cut off, or the current position (which says
    nothing, so it earns nothing).

    Returns:
        The moves; (number, reason) of the illegal way-points; the number of way-points tried.
    """
    position, tried = start, 0
    moves: list[str] = []
    illegal: list[tuple[int, str]] = []
    for number, cell in enumerate(waypoints, 1):
        if position == maze.goal:
            break
        tried = number
        target = _waypoint(maze, position, cell)
        if isinstance(target, str):
            illegal.append((number, target))
            if not skip:
                break
            continue
        leg = shortest_path(maze, position, target)
        passed = _cells(maze, position, leg)
        if maze.goal in passed:
            leg = leg[: passed.index(maze.goal) + 1]
            target = maze.goal
        moves += leg
        position = target
    return tuple(moves), tuple(illegal), tried


def _waypoint(maze: Maze, position: int, cell: Cell) -> int | str:
    """The way-point as an int, or the reason why it is illegal."""
    target = maze.index(cell)
    if target is None:
        return "edge"
    if maze.wall(target):
        return "wall"
    if target == position:
        return "here"
    return target if maze.distances(target)[position] >= 0 else "cut off"


def corners(maze: Maze, start: int, moves: Sequence[str]) -> tuple[Cell, ...]:
    """Way-points that determine a path: the cells where it turns, and its end."""
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
    """A text that is equal for equal mazes."""
    return f"{maze.width}x{maze.height}:{maze.walls:x}:{maze.start}:{maze.goal}"


def split_of(maze: Maze) -> Split:
    """The split of a maze: a function of its content alone, never of a seed."""
    return turn_game.split_of(content(maze))


@dataclass(frozen=True, slots=True)
class Mazes(turn_game.Generated):
    """Solvable mazes whose start and goal are `min_distance` apart, split by content."""

    width: int
    height: int
    wall_density: float
    min_distance: int
    path: str = "env"

    def draw(self, index: int) -> Maze:
        cells = self.width * self.height
        layout = struct.Struct(f"<{cells}HII")
        threshold = round(self.wall_density * 65536)
        for attempt in range(ATTEMPTS):
            purpose = f"plan_path|{self.split}|{self.seed}|{index}|{attempt}"
            *draws, first, second = layout.unpack(hashlib.shake_128(purpose.encode()).digest(layout.size))
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
            path=self.path,
            why=f"{self.height}x{self.width} grids with wall density {self.wall_density} hardly ever have a "
            f"start and a goal {self.min_distance} steps apart, or too few of them for three splits",
            fix="use a larger grid, fewer walls, or a smaller min_distance",
        )

    def _far_enough(self, maze: Maze) -> bool:
        for distance, ring in enumerate(rings(maze.width, maze.height, maze.walls, maze.goal)):
            if ring >> maze.start & 1:
                return distance >= self.min_distance
        return False
