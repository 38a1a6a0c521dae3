"""Boards of Sokoban: drawn by reverse play, or read from records.

Reverse play starts from the solved board and *pulls* boxes off the targets. A pull can be undone by a push,
so every board has a solution. The oracle then counts the pushes of the best one.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.core.errors import ConfigError
from coterie.core.types import Task
from coterie.plugins.envs.common.grid import MOVES, OPPOSITE, bits, neighbours, region
from coterie.plugins.envs.common.turn_game import Generated, check_shape, rows_of, split_of
from coterie.plugins.envs.sokoban.board import Board
from coterie.plugins.envs.sokoban.solver import solve

ATTEMPTS = 5_000
"""Rejected draws after which generation fails."""


def content(board: Board) -> str:
    """A text that is equal for boards that are the same problem.

    Boxes and targets are sets. The player's start within its region changes the first steps and no push, so
    boards that differ in nothing else are one problem and belong to one split.
    """
    reach = region(board.width, board.height, board.walls | board.boxes, board.player)
    return (
        f"{board.width}x{board.height}:{board.walls:x}:{board.targets:x}:{board.boxes:x}"
        f":{(reach & -reach).bit_length() - 1}"
    )


@dataclass(frozen=True, slots=True)
class Boards(Generated):
    """Boards whose solutions have a wanted number of pushes, split by content."""

    width: int
    height: int
    boxes: int
    wall_density: float
    min_pushes: int
    max_pushes: int | None
    path: str = "env"

    def draw(self, index: int) -> Board:
        for attempt in range(ATTEMPTS):
            board = self._drawn(f"sokoban|{self.split}|{self.seed}|{index}|{attempt}")
            if board is not None and split_of(content(board)) == self.split and self._hard_enough(board):
                return board
        most = "" if self.max_pushes is None else f" and at most {self.max_pushes}"
        raise ConfigError(
            f"no board for split '{self.split}' in {ATTEMPTS} draws",
            path=self.path,
            why=f"{self.height}x{self.width} grids with wall density {self.wall_density} and {self.boxes} "
            f"box{'es' * (self.boxes > 1)} hardly ever take at least {self.min_pushes}{most} pushes, or "
            "there are too few of them for three splits",
            fix="use a larger grid, fewer walls or boxes, or other bounds of pushes",
        )

    def _drawn(self, purpose: str) -> Board | None:
        """A random board: walls, targets, and boxes pulled off them; None for a draw without a problem."""
        cells, most = self.width * self.height, self._most_pulls()
        layout = struct.Struct(f"<{cells}H{self.boxes + 3 + most}I")
        draws = layout.unpack(hashlib.shake_128(purpose.encode()).digest(layout.size))
        threshold = round(self.wall_density * 65536)
        free = [cell for cell in range(cells) if draws[cell] >= threshold]
        if len(free) < self.boxes + 2:
            return None
        walls = (1 << cells) - 1 - sum(1 << cell for cell in free)
        first, number, last, *rest = draws[cells:]
        for at in range(self.boxes):  # the first steps of a shuffle
            other = at + rest[at] % (len(free) - at)
            free[at], free[other] = free[other], free[at]
        targets = sum(1 << cell for cell in free[: self.boxes])
        player = free[self.boxes + first % (len(free) - self.boxes)]
        pulls = self.min_pushes + number % (most - self.min_pushes + 1)
        boxes, player = _pulled(self.width, self.height, walls, targets, player, rest[self.boxes :][:pulls])
        if boxes == targets:
            return None
        reach = list(bits(region(self.width, self.height, walls | boxes, player)))
        return Board(self.width, self.height, walls, targets, boxes, reach[last % len(reach)])

    def _most_pulls(self) -> int:
        """The most pulls of a draw: more than the wanted pushes, since random pulls undo each other."""
        wanted = self.max_pushes or max(self.min_pushes, (self.width + self.height) * self.boxes)
        return 2 * wanted

    def _hard_enough(self, board: Board) -> bool:
        if self.max_pushes is not None and board.distance(board.boxes) > self.max_pushes:
            return False
        solution = solve(board, board.boxes, board.player)
        if solution is None:  # too large for the oracle, so the difficulty is unknown
            return False
        pushes = len(solution.pushes)
        return self.min_pushes <= pushes and (self.max_pushes is None or pushes <= self.max_pushes)


def _pulled(
    width: int, height: int, walls: int, boxes: int, player: int, draws: Sequence[int]
) -> tuple[int, int]:
    """The boxes and the player after one pull per draw; no pull undoes the one before it."""
    next_to, undo = neighbours(width, height), None
    for draw in draws:
        solid = walls | boxes
        reach = region(width, height, solid, player)
        pulls = []
        for box in bits(boxes):
            for move in MOVES:
                pulled = next_to[box][move]
                beyond = next_to[pulled][move] if pulled >= 0 else -1
                free = beyond >= 0 and reach >> pulled & 1 and not solid >> beyond & 1
                if free and (box, move) != undo:
                    pulls.append((box, move, pulled, beyond))
        if not pulls:
            break
        box, move, pulled, player = pulls[draw % len(pulls)]
        boxes ^= 1 << box | 1 << pulled
        undo = (pulled, OPPOSITE[move])
    return boxes, player


# -------------------------------------------------------------------------------------------------- records

MARKS = "#.$@*+-"


def rows(
    board: Board, boxes: int | None = None, player: int | None = None, targets: bool = True
) -> list[str]:
    """The usual picture, row by row from the top, without the walls around the grid.

    `#` wall, `.` target, `$` box, `@` player, `*` box on a target, `+` player on a target, `-` free.
    """
    boxes = board.boxes if boxes is None else boxes
    player = board.player if player is None else player
    visible_targets = board.targets if targets else 0

    def mark(cell: int) -> str:
        on = visible_targets >> cell & 1
        if cell == player:
            return "+" if on else "@"
        if boxes >> cell & 1:
            return "*" if on else "$"
        return "#" if board.walls >> cell & 1 else "." if on else "-"

    marks = [mark(cell) for cell in range(board.width * board.height)]
    return ["".join(marks[at : at + board.width]) for at in range(0, len(marks), board.width)]


def record(task: Task) -> dict[str, Any]:
    """`{"grid": ["-$.", ...]}`."""
    return {"grid": rows(task.payload)}


def task_of(record: Mapping[str, Any], id: str, *, width: int, height: int, boxes: int) -> Task:
    """The task of a record; only its field `grid` is read.

    Raises:
        ValueError: the record has no grid, another size or number of boxes, or the oracle doesn't solve it.
    """
    board = board_of(record)
    check_shape((board.width, board.height), (width, height))
    if board.boxes.bit_count() != boxes:
        raise ValueError(f"the grid has {board.boxes.bit_count()} boxes, the environment {boxes}")
    if board.boxes == board.targets:
        raise ValueError("all boxes are on targets already")
    if solve(board, board.boxes, board.player) is None:
        raise ValueError("the oracle finds no solution")
    return Task(id=id, payload=board)


def board_of(record: Mapping[str, Any]) -> Board:
    """The board of a record; raises ValueError where it is none, or has more boxes than targets or fewer."""
    text, (width, height) = rows_of(record, MARKS)

    def cells(marks: str) -> int:
        return sum(1 << cell for cell, mark in enumerate(text) if mark in marks)

    players, boxes, targets = cells("@+"), cells("$*"), cells(".*+")
    if players.bit_count() != 1:
        raise ValueError(f"a grid has one player (@ or +), not {players.bit_count()}")
    if not boxes or boxes.bit_count() != targets.bit_count():
        raise ValueError(f"{boxes.bit_count()} boxes for {targets.bit_count()} targets")
    return Board(width, height, cells("#"), targets, boxes, players.bit_length() - 1)
