"""Mazes of Plan-Path as records: rows of text with `S`tart, `G`oal, `#` wall and `.` free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.core.types import Task
from coterie.plugins.envs.common.turn_game import check_shape, rows_of
from coterie.plugins.envs.plan_path.grid import Maze


def rows(maze: Maze) -> list[str]:
    """The map, row by row from the top."""
    marks = ["#" if maze.wall(cell) else "." for cell in range(maze.width * maze.height)]
    marks[maze.start], marks[maze.goal] = "S", "G"
    return ["".join(marks[at : at + maze.width]) for at in range(0, len(marks), maze.width)]


def record(task: Task) -> dict[str, Any]:
    """`{"grid": ["S.#", ...]}`."""
    return {"grid": rows(task.payload)}


def task_of(record: Mapping[str, Any], id: str, *, width: int, height: int) -> Task:
    """The task of a record; only its field `grid` is read.

    Raises:
        ValueError: the record has no grid, it has another size, or it has no way from start to goal.
    """
    text, shape = rows_of(record, "SG#.")
    check_shape(shape, (width, height))
    if text.count("S") != 1 or text.count("G") != 1:
        raise ValueError(f"a grid has one S and one G, not {text.count('S')} and {text.count('G')}")
    walls = sum(1 << cell for cell, mark in enumerate(text) if mark == "#")
    maze = Maze(width, height, walls, text.index("S"), text.index("G"))
    if maze.left(maze.start) < 0:
        raise ValueError("there is no way from start to goal")
    return Task(id=id, payload=maze)
