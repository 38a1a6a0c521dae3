"""The values of Plan-Path: what the game is in, and what a role sees of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from coterie.plugins.envs.common.code import ToolRun
from coterie.plugins.envs.common.grid import Cell
from coterie.plugins.envs.common.parsing import Rendering
from coterie.plugins.envs.plan_path.grid import Maze, Walk
from coterie.plugins.envs.plan_path.messages import Language, WaypointWords


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the planner handed over, and what became of it on a fork."""

    moves: tuple[str, ...] = ()
    """Written in the language of moves."""
    legs: tuple[str, ...] = ()
    """Written in the language of legs."""
    waypoints: tuple[Cell, ...] = ()
    """Written in the language of way-points."""
    fork: Walk | None = None
    """The walk that the plan alone would make; None where it couldn't be read."""

    @property
    def author(self) -> str:
        return "planner"

    @property
    def run(self) -> ToolRun | None:
        """What the tool's program did; None of a planner."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan(Plan):
    """What a program printed as `moves`."""

    run: ToolRun = field()  # type: ignore[assignment]  # not the property, which would be taken for a default

    @property
    def author(self) -> str:
        return "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A value: copied by `dataclasses.replace`, never mutated."""

    maze: Maze
    position: int
    first: int
    """Steps from the start to the goal."""
    turn: int = 0
    """Walks so far."""
    plan: Plan | None = None
    """Of the turn that is played; None before the planner spoke."""
    last_plan: Plan | None = None
    """The plan that the last walk was made under."""
    last_walk: Walk | None = None
    last_mover: str = ""

    @property
    def solved(self) -> bool:
        return self.position == self.maze.goal

    @property
    def left(self) -> int:
        """Steps to the goal."""
        return self.maze.left(self.position)

    @property
    def here(self) -> Cell:
        return self.maze.cell(self.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a role sees. The position is where it stands *now*."""

    role: str
    turn: int
    height: int
    width: int
    position: Cell
    goal: Cell | None
    """None where the role doesn't see the map."""
    walls: tuple[Cell, ...]
    """All of them, or with `sees: neighbours` those next to the position."""
    sees: Literal["map", "neighbours"]
    plan: tuple[str, ...] | tuple[Cell, ...] | None
    """The planner's, in its language; () where it has none; None where the role is given no plan."""
    plan_language: Language
    waypoint_words: WaypointWords
    rendering: Rendering
    max_moves: int | None
    program: ToolRun | None = None
    """What the tool's program of this turn did; None where the role is shown none."""
    proposal: tuple[str, ...] | None = None
    """What it printed, as moves; None where it can't be read."""

    @property
    def writes(self) -> Language:
        """The language of this role's messages."""
        return self.plan_language if self.role == "planner" else "moves"
