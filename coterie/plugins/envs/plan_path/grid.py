"""The world of Plan-Path: mazes, their generation, distances, walks and the oracle."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

from coterie.core.types.splits import Split
from coterie.plugins.envs.board.effects import Effect, play
from coterie.plugins.envs.board.grid import MOVES, Cell, Rectangle, bits, neighbours, rings
from coterie.plugins.envs.common.generated import split_of


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
        return _wall_cells(self.width, self.walls)

    def rows(self) -> list[str]:
        """The map, row by row from the top: `S`tart, `G`oal, `#` wall and `.` free."""
        marks = ["#" if self.wall(cell) else "." for cell in range(self.width * self.height)]
        marks[self.start], marks[self.goal] = "S", "G"
        return ["".join(marks[at : at + self.width]) for at in range(0, len(marks), self.width)]

    @property
    def content(self) -> str:
        """A text that is equal for equal mazes."""
        return f"{self.width}x{self.height}:{self.walls:x}:{self.start}:{self.goal}"

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
def _wall_cells(width: int, walls: int) -> tuple[Cell, ...]:
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
class MazeWalk(Effect):
    """The effect of a list of moves. Where way-points led it, `illegal` and `tried` count these."""

    start: int
    end: int
    played: int = 0
    """The number of legal moves."""
    shortest: bool = False
    """At least one move was played, none refused, and each brought the goal one step closer."""
    recorded_as: ClassVar[str] = (
        "Walk(start, end, moves=items, written, played, illegal, tried, readable, shortest)"
    )


def walk(maze: Maze, start: int, moves: Sequence[str], *, limit: int | None, skip: bool) -> MazeWalk:
    """Play moves up to the goal, the limit, or (unless `skip`) the first illegal move."""
    field, path = maze.distances(maze.goal), [start]

    def enter(move: str) -> str:
        neighbour = maze.neighbour(path[-1], move)
        if isinstance(neighbour, str):
            return neighbour
        path.append(neighbour)
        return ""

    played = play(moves, enter, lambda: path[-1] == maze.goal, limit=limit, skip=skip)
    closer = len(path) > 1 and all(field[after] == field[before] - 1 for before, after in pairwise(path))
    return MazeWalk(
        start=start,
        end=path[-1],
        played=len(path) - 1,
        shortest=closer and not played["illegal"],
        **played,
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
    position = start
    moves: list[str] = []

    def visit(cell: Cell) -> str:
        nonlocal position
        target = _waypoint(maze, position, cell)
        if isinstance(target, str):
            return target
        leg = shortest_path(maze, position, target)
        passed = _cells(maze, position, leg)
        if maze.goal in passed:
            leg = leg[: passed.index(maze.goal) + 1]
            target = maze.goal
        moves.extend(leg)
        position = target
        return ""

    played = play(waypoints, visit, lambda: position == maze.goal, limit=None, skip=skip)
    return tuple(moves), played["illegal"], played["tried"]


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


def drawn_maze(
    purpose: str, split: Split, *, width: int, height: int, wall_density: float, min_distance: int
) -> Maze | None:
    """A random maze, a function of `purpose`; None where it is of another split, or start and goal are not at
    least `min_distance` steps apart."""
    cells = width * height
    layout = struct.Struct(f"<{cells}HII")
    threshold = round(wall_density * 65536)
    *draws, first, second = layout.unpack(hashlib.shake_128(purpose.encode()).digest(layout.size))
    free = [cell for cell in range(cells) if draws[cell] >= threshold]
    if len(free) < 2:
        return None
    walls = (1 << cells) - 1 - sum(1 << cell for cell in free)
    maze = Maze(width, height, walls, free[first % len(free)], free[second % len(free)])
    if maze.start == maze.goal or split_of(maze.content) != split:
        return None
    for distance, ring in enumerate(rings(width, height, walls, maze.goal)):
        if ring >> maze.start & 1:
            return maze if distance >= min_distance else None
    return None
