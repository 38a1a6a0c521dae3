"""Drawn mazes for the tests of Plan-Path."""

from __future__ import annotations

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
