"""Mazes of Plan-Path as records and for people: rows of text with `S`tart, `G`oal, `#` wall and `.` free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.core.types import Task
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
    """The task of a record; of its fields `grid` alone is read.

    Raises:
        ValueError: there is no grid, it is of another size, or it has no way from start to goal.
    """
    if "grid" not in record:
        raise ValueError(f"the record has no field 'grid' (fields: {', '.join(record) or 'none'})")
    maze = _maze(record["grid"])
    if (maze.width, maze.height) != (width, height):
        raise ValueError(
            f"the grid has {maze.height} rows and {maze.width} columns, the environment {height} and {width}"
        )
    if maze.left(maze.start) < 0:
        raise ValueError("there is no way from start to goal")
    return Task(id=id, payload=maze)


def _maze(lines: Any) -> Maze:
    rectangle = (
        isinstance(lines, Sequence)
        and not isinstance(lines, str)
        and bool(lines)
        and all(isinstance(line, str) and line and len(line) == len(lines[0]) for line in lines)
    )
    if not rectangle:
        raise ValueError(f"a grid is a list of rows of one length, not {lines!r}")
    text = "".join(lines)
    strange = sorted(set(text) - set("SG#."))
    if strange:
        raise ValueError(f"a grid is made of S, G, # and ., not of {' '.join(strange)}")
    if text.count("S") != 1 or text.count("G") != 1:
        raise ValueError(f"a grid has one S and one G, not {text.count('S')} and {text.count('G')}")
    walls = sum(1 << cell for cell, mark in enumerate(text) if mark == "#")
    return Maze(len(lines[0]), len(lines), walls, text.index("S"), text.index("G"))
