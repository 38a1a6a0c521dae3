"""Drawn mazes for the tests of Plan-Path."""

from __future__ import annotations

from collections import deque
from typing import Any

from coterie.core.types import Task
from coterie.plugins.envs.plan_path.grid import Maze


def maze(*rows: str) -> Maze:
    """`S` start, `G` goal, `#` wall."""
    text = "".join(rows)
    walls = sum(1 << index for index, mark in enumerate(text) if mark == "#")
    return Maze(len(rows[0]), len(rows), walls, text.index("S"), text.index("G"))


def start(env: Any, *rows: str) -> Any:
    return env.reset(Task(id="t", payload=maze(*rows)), 0)


WALLED = ("....", ".S#.", ".#..", "...G")
"""Start r1c1, goal r3c3; walls r1c2 and r2c1; the way round takes six steps."""


def distance_by_the_book(maze: Maze, cell: tuple[int, int]) -> int:
    """Steps from a cell to the goal, -1 where there is no way: breadth-first search on cells, apart from the
    environment's."""
    far, queue = {maze.cell(maze.goal): 0}, deque([maze.cell(maze.goal)])
    while queue and cell not in far:
        row, column = queue.popleft()
        for neighbour in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            inside = 0 <= neighbour[0] < maze.height and 0 <= neighbour[1] < maze.width
            if (
                neighbour not in far
                and inside
                and not maze.walls >> neighbour[0] * maze.width + neighbour[1] & 1
            ):
                far[neighbour] = far[row, column] + 1
                queue.append(neighbour)
    return far.get(cell, -1)
