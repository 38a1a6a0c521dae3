"""Drawn boards for the tests of Sokoban, and a slow second opinion on everything."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from coterie.core.types import Task
from coterie.plugins.envs.sokoban.board import Board, board_of

STEPS = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}


def drawn(rows: Sequence[str]) -> Board:
    """As in a record: `#` wall, `.` target, `$` box, `@` player, `*` box and `+` player on a target."""
    return board_of("".join(rows), len(rows[0]), len(rows))


def start(env: Any, *rows: str) -> Any:
    return env.reset(Task(id="t", payload=drawn(rows)), 0)


CORNER = ("----", "-@$-", "--#-", "-.--")
"""Player r1c1, box r1c2, target r3c1, wall r2c2: three pushes, L, D, D, and the player must go round."""


class Slow:
    """The game again, from the rules: cells are pairs, boxes are sets, nothing is shared with the package."""

    def __init__(self, board: Board) -> None:
        def cells(mask: int) -> frozenset[tuple[int, int]]:
            return frozenset(divmod(i, board.width) for i in range(mask.bit_length()) if mask >> i & 1)

        self.floor = {(r, c) for r in range(board.height) for c in range(board.width)} - cells(board.walls)
        self.targets, self.boxes = cells(board.targets), cells(board.boxes)
        self.player = divmod(board.player, board.width)

    def moved(self, boxes, player, move):
        """(boxes, player, pushed), or None where the move is illegal."""
        (dr, dc), (r, c) = STEPS[move], player
        target, beyond = (r + dr, c + dc), (r + 2 * dr, c + 2 * dc)
        if target not in self.floor:
            return None
        if target not in boxes:
            return boxes, target, False
        if beyond not in self.floor or beyond in boxes:
            return None
        return boxes - {target} | {beyond}, target, True

    def best(self):
        """(pushes, moves) of the best solution by plain search over single moves; None: there is none."""
        layer, seen, pushes = {(self.boxes, self.player): 0}, set(), 0
        while layer:
            # All states of this many pushes, with their fewest moves: single steps, shortest first.
            queue, reached, after = sorted(layer.items(), key=lambda item: item[1]), {}, {}
            buckets: dict[int, list[Any]] = {}
            for state, moves in queue:
                buckets.setdefault(moves, []).append(state)
            while buckets:
                moves = min(buckets)
                for state in buckets.pop(moves):
                    if state in seen or state in reached:
                        continue
                    reached[state] = moves
                    for move in STEPS:
                        result = self.moved(*state, move)
                        if result is None:
                            continue
                        following = (result[0], result[1])
                        if result[2]:
                            after[following] = min(moves + 1, after.get(following, moves + 1))
                        else:
                            buckets.setdefault(moves + 1, []).append(following)
            solved = [moves for (boxes, _), moves in reached.items() if boxes == self.targets]
            if solved:
                return pushes, min(solved)
            seen |= set(reached)
            layer = {state: moves for state, moves in after.items() if state not in seen}
            pushes += 1
        return None

    def solvable(self):
        """Every (boxes, player) of this grid from which there is a solution, by going through them all."""
        into: dict[Any, list[Any]] = {}
        queue: deque[Any] = deque()
        solvable = set()
        for placed in combinations(sorted(self.floor), len(self.boxes)):
            boxes = frozenset(placed)
            for player in self.floor - boxes:
                if boxes == self.targets:
                    solvable.add((boxes, player))
                    queue.append((boxes, player))
                for move in STEPS:
                    result = self.moved(boxes, player, move)
                    if result is not None:
                        into.setdefault((result[0], result[1]), []).append((boxes, player))
        while queue:
            for before in into.get(queue.popleft(), ()):
                if before not in solvable:
                    solvable.add(before)
                    queue.append(before)
        return solvable

    def left(self, boxes):
        return sum(box not in self.targets for box in boxes)

    def distance(self, boxes, cap):
        """Sum over boxes of the fewest pushes to any target, each alone and the player anywhere."""
        return sum(self._alone(box, cap) for box in boxes)

    def _alone(self, box, cap):
        queue, seen = deque([(box, 0)]), {box}
        while queue:
            (r, c), pushes = queue.popleft()
            if (r, c) in self.targets:
                return pushes
            for dr, dc in STEPS.values():
                target, behind = (r + dr, c + dc), (r - dr, c - dc)
                if target in self.floor and behind in self.floor and target not in seen:
                    seen.add(target)
                    queue.append((target, pushes + 1))
        return cap


def mask(board: Board, cells: Any) -> int:
    return sum(1 << r * board.width + c for r, c in cells)
