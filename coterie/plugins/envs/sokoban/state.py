"""The values of Sokoban: what the game is in, and what a role sees of it."""

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
    """What the planner or the tool proposed, and what became of it on a fork."""

    author: Literal["planner", "tool"] = "planner"
    pushes: tuple[Push, ...] = ()
    """The planner's."""
    moves: tuple[str, ...] = ()
    """Printed by the tool's program."""
    run: ToolRun | None = None
    """What the tool's program did; None of a planner."""
    fork: Walk | None = None
    """What the plan alone would do; None where it couldn't be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A value: copied by `dataclasses.replace`, never mutated. The board holds the start."""

    board: Board
    boxes: int
    player: int
    turn: int = 0
    """Messages that moved so far."""
    plan: Plan | None = None
    """Of the turn that is played; None before anybody proposed."""
    last_plan: Plan | None = None
    """The plan that the last walk was made under."""
    last_walk: Walk | None = None
    last_mover: str = ""

    @property
    def solved(self) -> bool:
        return self.boxes == self.board.targets

    @property
    def here(self) -> Cell:
        return self.board.cell(self.player)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a role sees. The player and the boxes are where they are *now*."""

    role: str
    turn: int
    height: int
    width: int
    player: Cell
    boxes: tuple[Cell, ...]
    targets: tuple[Cell, ...] | None
    """None where the role doesn't see them."""
    walls: tuple[Cell, ...]
    plan: tuple[Push, ...] | None
    """The planner's; () where it has none; None where the role is given no plan."""
    program: ToolRun | None
    """What the tool's program of this turn did; None where the role is shown none."""
    proposal: tuple[str, ...] | None
    """What it printed, as moves; None where it can't be read."""
    push_words: PushWords
    rendering: Rendering
    max_moves: int | None
    max_pushes_planned: int | None

    @property
    def writes(self) -> Writes:
        """What this role's messages are made of."""
        if self.role == "tool":
            return "code"
        return "pushes" if self.role == "planner" else "moves"
