"""The values of Sokoban: plans, states and observations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.plugins.envs.common.code import ToolRun
from coterie.plugins.envs.common.grid import Cell
from coterie.plugins.envs.common.parsing import Rendering
from coterie.plugins.envs.sokoban.board import Board, Push, Walk
from coterie.plugins.envs.sokoban.messages import PushWords, Writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The proposal of the planner or the tool, and its effect on a fork."""

    author: Literal["planner", "tool"] = "planner"
    pushes: tuple[Push, ...] = ()
    """Written by the planner."""
    moves: tuple[str, ...] = ()
    """Printed by the tool's program."""
    run: ToolRun | None = None
    """The run of the tool's program; None for a planner."""
    fork: Walk | None = None
    """The walk of the plan alone; None where it couldn't be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A value: copied by `dataclasses.replace`, never mutated. The board holds the start."""

    board: Board
    boxes: int
    player: int
    turn: int = 0
    """Messages that moved so far."""
    plan: Plan | None = None
    """The plan of the current turn; None before it is proposed."""
    last_plan: Plan | None = None
    """The plan that the last mover saw."""
    last_walk: Walk | None = None
    last_mover: str = ""

    @property
    def solved(self) -> bool:
        return self.boxes == self.board.targets

    @property
    def player_cell(self) -> Cell:
        """The player's cell as (row, column)."""
        return self.board.cell(self.player)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The observation of a role. The player and the boxes are the current ones."""

    role: str
    turn: int
    height: int
    width: int
    player: Cell
    boxes: tuple[Cell, ...]
    targets: tuple[Cell, ...] | None
    """None if the role doesn't see them."""
    walls: tuple[Cell, ...]
    plan: tuple[Push, ...] | None
    """The planner's pushes; () for none; None if the role sees no plan."""
    program: ToolRun | None
    """The run of this turn's program; None if the role sees none."""
    proposal: tuple[str, ...] | None
    """The moves that it printed; None where they can't be read."""
    push_words: PushWords
    rendering: Rendering
    max_moves: int | None
    max_pushes_planned: int | None

    @property
    def writes(self) -> Writes:
        """The form of this role's messages."""
        if self.role == "tool":
            return "code"
        return "pushes" if self.role == "planner" else "moves"
