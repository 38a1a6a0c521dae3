"""The values of Sokoban, and its prompts: egocentric words, or English with a picture.

The compact form is for models of under a million parameters with one token per word: the player's cell once,
everything else as offsets from it, each kind nearest first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.plugins.envs.board.grid import Cell
from coterie.plugins.envs.board.parsing import Wording, cell_word, nearest_first
from coterie.plugins.envs.board.values import BoardObservation, BoardPlan, BoardState, grid_line, pictured
from coterie.plugins.envs.common.teams import Rendering
from coterie.plugins.envs.sokoban import messages
from coterie.plugins.envs.sokoban.board import Board, Push
from coterie.plugins.envs.sokoban.messages import PushWords, Writes


def push_word(push: Push) -> str:
    """A push in feedback: `r1c2R`, or `pR`."""
    cell, move = push
    return f"p{move}" if cell is None else f"{cell_word(cell)}{move}"


MOVE_WORDING = Wording(
    reasons={
        "wall": "hit a wall",
        "edge": "would have left the grid",
        "box": "would have pushed a box against something solid",
    },
    nothing="{who} played nothing last turn, and the player stayed at {end}.",
    start=" from {start}",
    end="The player is at {end}, {boxes}.",
    limit_first=True,
)
WALKED_PUSHES = Wording(
    item="push", items="pushes", nothing=MOVE_WORDING.nothing, start=MOVE_WORDING.start, end=MOVE_WORDING.end
)
"""For a planner whose pushes were made: a sentence on its plan names the refused ones."""
PLAN_WORDING = Wording(
    item="push",
    items="pushes",
    word=push_word,
    reasons={
        "edge": "names a cell outside the grid",
        "no box": "names a cell without a box",
        "blocked": "would push the box against something solid",
        "cut off": "can't be made: the player can't get behind the box",
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPlan(BoardPlan):
    """The pushes of a planner, or the moves that a tool's program printed."""

    recorded_as: ClassVar[str] = "Plan(author, pushes, moves, run, fork)"

    @property
    def pushes(self) -> tuple[Push, ...]:
        return self.items if self.author == "planner" else ()

    @property
    def moves(self) -> tuple[str, ...]:
        return self.items if self.author == "tool" else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SokobanState(BoardState):
    """The boxes and the player. The board holds the start."""

    board: Board
    boxes: int
    player: int
    recorded_as: ClassVar[str] = (
        "State(board, boxes, player, turn, plan, last_plan, last_walk=last_effect, last_mover)"
    )

    @property
    def left(self) -> int:
        """The number of boxes that are on no target."""
        return self.board.left(self.boxes)

    @property
    def player_cell(self) -> Cell:
        """The player's cell as (row, column)."""
        return self.board.cell(self.player)


@dataclass(frozen=True, slots=True, kw_only=True)
class SokobanObservation(BoardObservation):
    """The observation of a role. The player and the boxes are the current ones."""

    height: int
    width: int
    player: Cell
    boxes: tuple[Cell, ...]
    targets: tuple[Cell, ...] | None
    """None if the role doesn't see them."""
    walls: tuple[Cell, ...]
    push_words: PushWords
    max_moves: int | None
    max_pushes_planned: int | None
    wording: ClassVar[Wording] = MOVE_WORDING

    @property
    def writes(self) -> Writes:
        """The form of this role's messages."""
        if self.role == "tool":
            return "code"
        return "pushes" if self.role == "planner" else "moves"

    def read(self, text: str, rendering: Rendering) -> tuple[Any, ...]:
        """Moves, e.g. ("U", "R"), or pushes as ((row, column) or None, direction)."""
        if self.writes == "moves":
            return messages.read_moves(text, rendering)
        return messages.read_pushes(text, rendering, self.player, self.push_words)

    def plan_items(self) -> str:
        return "pushes"

    def plan_words(self) -> list[str]:
        return messages.push_words(self.plan or (), self.player, self.push_words)

    def compact(self) -> str:
        """`planner r1c2 T+0+2 B+1+0 #-1+0 :`; the executor's prompt has `plan +1+0R` before the colon."""
        words = [self.role, cell_word(self.player)]
        for mark, cells in (("T", self.targets or ()), ("B", self.boxes), ("#", self.walls)):
            words += nearest_first(mark, cells, self.player)
        if self.plan is not None:
            words += ["plan", *self.plan_words()]
        return " ".join([*words, ":"])

    def board_lines(self) -> list[str]:
        """The picture; targets only if the role sees them."""
        legend = "'#' is a wall, '$' a box, '@' the player, '-' a free cell."
        targets = ""
        if self.targets is not None:
            legend = (
                "'#' is a wall, '.' a target, '$' a box, '@' the player, '*' a box on a target, '+' the "
                "player on a target, '-' a free cell."
            )
            targets = f", {_placed('target', 'targets', self.targets)}"
        placed = f"The player is at {cell_word(self.player)}, {boxes_words(self.boxes)}{targets}."
        return [grid_line(self.turn, self.height, self.width), legend, "", *self._picture(), "", placed]

    def task(self) -> str:
        if self.writes != "pushes":
            return self.asked_moves(self.max_moves, "the board above")
        most = f" (at most {self.max_pushes_planned})" if self.max_pushes_planned is not None else ""
        if self.push_words == "directions":
            return f"Name the pushes of the box in order{most}, as a list such as [pR, pU]:"
        return (
            f"Name the pushes in order{most}, each the cell of a box and a direction (U, D, L, R), as a "
            "list such as [r1c2R, r1c3U]:"
        )

    def _picture(self) -> list[str]:
        targets = set(self.targets or ())
        marks = dict.fromkeys(self.walls, "#") | dict.fromkeys(targets, ".")
        marks |= {box: "*" if box in targets else "$" for box in self.boxes}
        marks[self.player] = "+" if self.player in targets else "@"
        return pictured(self.height, self.width, marks, "-")


def boxes_words(cells: tuple[Cell, ...]) -> str:
    """`the box at r1c2`, as part of a sentence."""
    return _placed("box", "boxes", cells)


def _placed(singular: str, plural: str, cells: tuple[Cell, ...]) -> str:
    return f"the {singular if len(cells) == 1 else plural} at {', '.join(map(cell_word, cells))}"
