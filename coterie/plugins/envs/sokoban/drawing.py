"""Boards of Sokoban, drawn by reverse play.

Reverse play starts from the solved board and *pulls* boxes off the targets. A pull can be undone by a push,
so every board has a solution. The oracle then counts the pushes of the best one.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from coterie.core.types.splits import Split
from coterie.plugins.envs.board.grid import MOVES, OPPOSITE, bits, neighbours, region
from coterie.plugins.envs.common.generated import split_of
from coterie.plugins.envs.sokoban.board import Board
from coterie.plugins.envs.sokoban.solver import solve


@dataclass(frozen=True, slots=True)
class BoardDraw:
    """What is drawn: boards whose solutions have a wanted number of pushes."""

    width: int
    height: int
    boxes: int
    wall_density: float
    min_pushes: int
    max_pushes: int | None

    def board(self, purpose: str, split: Split) -> Board | None:
        """A random board, a function of `purpose`; None where it is no problem, of another split, or too hard
        or easy."""
        board = self._drawn(purpose)
        if board is None or split_of(board.content) != split:
            return None
        return board if self._hard_enough(board) else None

    def _drawn(self, purpose: str) -> Board | None:
        """A random board: walls, targets, and boxes pulled off them; None for a draw without a problem."""
        cells = self.width * self.height
        # More pulls than the wanted pushes, since random pulls undo each other.
        most = 2 * (self.max_pushes or max(self.min_pushes, (self.width + self.height) * self.boxes))
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
