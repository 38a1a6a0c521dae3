"""The values of Sokoban: what the game is in, and what a role sees of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from coterie.plugins.envs.games import ToolRun
from coterie.plugins.envs.sokoban.board import Board, Cell, Push, Walk
from coterie.plugins.envs.sokoban.language import PushWords, Rendering, Writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the planner or the tool proposed, and what became of it on a fork."""

    author: Literal["planner", "tool"] = "planner"
    pushes: tuple[Push, ...] = ()
    """The planner's."""
    moves: tuple[str, ...] = ()
    """Printed by the tool's program."""
    run: ToolRun | None = None
    """What the tool's program did; None of a planner, or where there was no program."""
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


def digest(state: State) -> str:
    """Stable across processes: every part is made of ints, strings and tuples."""
    return hashlib.blake2b(repr(state).encode(), digest_size=16).hexdigest()


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
    tool: ToolRun | None
    """What the tool's program did; None where the role isn't told, or there was no program."""
    proposal: tuple[str, ...] | None
    """Moves that the tool's program printed; None where they couldn't be read."""
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
