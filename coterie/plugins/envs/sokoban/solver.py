"""The oracle of Sokoban: solutions with the fewest pushes, and among these the fewest moves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush

from coterie.plugins.envs.board.grid import MOVES, OPPOSITE, bits, neighbours, rings
from coterie.plugins.envs.sokoban.board import Board, Push, deadlocked, follow, lone_box

EXPANSIONS = 20_000
"""States after which the search gives up; far more than boards of 6x6 with two boxes need."""

Position = tuple[int, int]
"""(boxes, player)."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The pushes and moves that solve a board; empty on a solved board."""

    pushes: tuple[Push, ...]
    moves: tuple[str, ...]


@lru_cache(maxsize=16384)
def solve(board: Board, boxes: int, player: int) -> Solution | None:
    """The best solution from a state; None where there is none, or none within `EXPANSIONS` states.

    A* over pushes by (pushes, moves) in that order; a position is the boxes and the player's cell after a
    push. The bound is the cheapest assignment of boxes to targets, each box as if it were alone. One push
    changes it by at most one, so it is consistent, and a position is final when it is expanded.
    """
    start = (boxes, player)
    if boxes == board.targets:
        return Solution((), ())
    if deadlocked(board, boxes):
        return None
    field, _ = lone_box(board.width, board.height, board.walls, board.targets)
    bounds = _Bounds(board)
    bound = bounds(boxes)
    if bound is None:
        return None
    best: dict[Position, tuple[int, int]] = {start: (0, 0)}
    came_from: dict[Position, tuple[Position, int, str]] = {}
    heap = [(bound, 0, boxes, player)]
    done: set[Position] = set()
    while heap and len(done) < EXPANSIONS:
        _, walked, boxes, player = heappop(heap)
        position = (boxes, player)
        if boxes == board.targets:
            return _solution(board, start, position, came_from)
        if position in done:
            continue
        done.add(position)
        pushed = best[position][0]
        for box, move, beyond, steps in _pushes(board, boxes, player, field):
            following = (boxes ^ (1 << box | 1 << beyond), box)
            cost = (pushed + 1, walked + steps + 1)
            if cost >= best.get(following, (1 << 60, 0)):
                continue
            bound = bounds(following[0])
            if bound is None or (following not in best and _stuck(board, following[0])):
                continue
            best[following] = cost
            came_from[following] = (position, box, move)
            heappush(heap, (cost[0] + bound, cost[1], *following))
    return None


class _Bounds:
    """The fewest pushes by the cheapest assignment, cached during one search."""

    def __init__(self, board: Board) -> None:
        targets = list(bits(board.targets))
        # With more targets the assignment costs more than it saves: then every box counts its nearest target.
        sets = [1 << target for target in targets] if len(targets) <= 6 else [board.targets]
        self._fields = [lone_box(board.width, board.height, board.walls, target)[0] for target in sets]
        self._assigns = len(sets) == len(targets)
        self._known: dict[int, int | None] = {}

    def __call__(self, boxes: int) -> int | None:
        """The bound; None: the boxes can't all reach different targets."""
        if boxes not in self._known:
            self._known[boxes] = self._cheapest(boxes)
        return self._known[boxes]

    def _cheapest(self, boxes: int) -> int | None:
        if not self._assigns:
            nearest = [self._fields[0][box] for box in bits(boxes)]
            return None if min(nearest) < 0 else sum(nearest)
        costs = {0: 0}  # by the set of targets of the boxes so far
        for box in bits(boxes):
            after: dict[int, int] = {}
            for taken, cost in costs.items():
                for number, field in enumerate(self._fields):
                    mark = taken | 1 << number
                    if mark != taken and field[box] >= 0:
                        after[mark] = min(cost + field[box], after.get(mark, 1 << 30))
            costs = after
        return min(costs.values(), default=None)


def _stuck(board: Board, boxes: int) -> bool:
    """Whether a deadlock is detected. A lone box is stuck only on dead cells, to which no push leads."""
    return boxes & (boxes - 1) != 0 and deadlocked(board, boxes)


def _pushes(board: Board, boxes: int, player: int, field: tuple[int, ...]) -> list[tuple[int, str, int, int]]:
    """(box, move, its cell after the push, steps to get behind it) of every push to a cell that isn't
    dead."""
    next_to = neighbours(board.width, board.height)
    solid = board.walls | boxes
    pushes, to_reach = [], 0
    for box in bits(boxes):
        for move in MOVES:
            beyond, behind = next_to[box][move], next_to[box][OPPOSITE[move]]
            if beyond < 0 or behind < 0 or solid >> beyond & 1 or solid >> behind & 1 or field[beyond] < 0:
                continue
            to_reach |= 1 << behind
            pushes.append((box, move, beyond, behind))
    steps: dict[int, int] = {}
    for distance, ring in enumerate(rings(board.width, board.height, solid, player)):
        for cell in bits(ring & to_reach):
            steps[cell] = distance
        to_reach &= ~ring
        if not to_reach:
            break
    return [(box, move, beyond, steps[behind]) for box, move, beyond, behind in pushes if behind in steps]


def _solution(
    board: Board, start: Position, end: Position, came_from: dict[Position, tuple[Position, int, str]]
) -> Solution:
    """The solution whose pushes lead from `start` to `end`."""
    pushes: list[Push] = []
    while end != start:
        end, box, move = came_from[end]
        pushes.append((board.cell(box), move))
    pushes.reverse()
    walk = follow(board, *start, pushes, limit=None, skip=False)
    return Solution(tuple(pushes), walk.items)
