"""The values of Plan-Path: plans, states and observations."""

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
    """The planner's message, and its effect on a fork."""

    moves: tuple[str, ...] = ()
    """Written in the language of moves."""
    legs: tuple[str, ...] = ()
    """Written in the language of legs."""
    waypoints: tuple[Cell, ...] = ()
    """Written in the language of way-points."""
    fork: Walk | None = None
    """The walk of the plan alone; None where it couldn't be read."""

    @property
    def author(self) -> str:
        return "planner"

    @property
    def run(self) -> ToolRun | None:
        """The run of the tool's program; None for a planner."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan(Plan):
    """A plan whose `moves` a program printed."""

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
    """The plan of the current turn; None before the planner acted."""
    last_plan: Plan | None = None
    """The plan that the last mover saw."""
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
    def cell(self) -> Cell:
        """The position as (row, column)."""
        return self.maze.cell(self.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The observation of a role. The position is the current one."""

    role: str
    turn: int
    height: int
    width: int
    position: Cell
    goal: Cell | None
    """None if the role doesn't see the map."""
    walls: tuple[Cell, ...]
    """All walls, or with `sees: neighbours` those next to the position."""
    sees: Literal["map", "neighbours"]
    plan: tuple[str, ...] | tuple[Cell, ...] | None
    """The planner's plan, in its language; () for none; None if the role sees no plan."""
    plan_language: Language
    waypoint_words: WaypointWords
    rendering: Rendering
    max_moves: int | None
    program: ToolRun | None = None
    """The run of this turn's program; None if the role sees none."""
    proposal: tuple[str, ...] | None = None
    """The moves that it printed; None where they can't be read."""

    @property
    def writes(self) -> Language:
        """The language of this role's messages."""
        return self.plan_language if self.role == "planner" else "moves"
