"""The oracle of Sokoban: solutions with the fewest pushes, and of these the fewest moves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush

from coterie.plugins.envs.common.grid import MOVES, OPPOSITE, bits, neighbours, rings
from coterie.plugins.envs.sokoban.board import Board, Push, deadlocked, follow, lone_box

EXPANSIONS = 20_000
"""States after which the search gives up; far more than boards of 6x6 with two boxes need."""

Place = tuple[int, int]
"""(boxes, player)."""


@dataclass(frozen=True, slots=True)
class Solution:
    """What to do; empty on a solved board."""

    pushes: tuple[Push, ...]
    moves: tuple[str, ...]


@lru_cache(maxsize=16384)
def solve(board: Board, boxes: int, player: int) -> Solution | None:
    """The best solution from a state; None where there is none, or none was found in `EXPANSIONS` states.

    A* over pushes (a state is where the boxes are and where the last push left the player), by (pushes,
    moves) in that order. The bound is the cheapest assignment of boxes to targets, each box as if it were
    alone: one push changes it by at most one, so it is consistent, and the first time a state is taken is
    final.
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
    best: dict[Place, tuple[int, int]] = {start: (0, 0)}
    came: dict[Place, tuple[Place, int, str]] = {}
    heap = [(bound, 0, boxes, player)]
    done: set[Place] = set()
    while heap and len(done) < EXPANSIONS:
        _, walked, boxes, player = heappop(heap)
        here = (boxes, player)
        if boxes == board.targets:
            return _told(board, start, here, came)
        if here in done:
            continue
        done.add(here)
        pushed = best[here][0]
        for box, move, beyond, steps in _pushes(board, boxes, player, field):
            there = (boxes ^ (1 << box | 1 << beyond), box)
            cost = (pushed + 1, walked + steps + 1)
            if cost >= best.get(there, (1 << 60, 0)):
                continue
            bound = bounds(there[0])
            if bound is None or (there not in best and _stuck(board, there[0])):
                continue
            best[there] = cost
            came[there] = (here, box, move)
            heappush(heap, (cost[0] + bound, cost[1], *there))
    return None


class _Bounds:
    """Fewest pushes by the cheapest assignment, remembered for the time of one search."""

    def __init__(self, board: Board) -> None:
        targets = list(bits(board.targets))
        # More targets than this cost more than they save: then all are one, and the nearest counts.
        sets = [1 << target for target in targets] if len(targets) <= 6 else [board.targets]
        self._fields = [lone_box(board.width, board.height, board.walls, one)[0] for one in sets]
        self._all = len(sets) == len(targets)
        self._known: dict[int, int | None] = {}

    def __call__(self, boxes: int) -> int | None:
        """None: some box has no target left that it could be brought to."""
        if boxes not in self._known:
            self._known[boxes] = self._cheapest(boxes)
        return self._known[boxes]

    def _cheapest(self, boxes: int) -> int | None:
        if not self._all:
            nearest = [self._fields[0][box] for box in bits(boxes)]
            return None if min(nearest) < 0 else sum(nearest)
        costs = {0: 0}  # by the set of targets that the boxes so far took
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
    """A lone box is stuck on dead cells only, and no push leads there."""
    return boxes & (boxes - 1) != 0 and deadlocked(board, boxes)


def _pushes(board: Board, boxes: int, player: int, field: tuple[int, ...]) -> list[tuple[int, str, int, int]]:
    """(box, move, where it goes, steps to get behind it) of every push that leads to no dead cell."""
    near = neighbours(board.width, board.height)
    solid = board.walls | boxes
    found, wanted = [], 0
    for box in bits(boxes):
        for move in MOVES:
            beyond, behind = near[box][move], near[box][OPPOSITE[move]]
            if beyond < 0 or behind < 0 or solid >> beyond & 1 or solid >> behind & 1 or field[beyond] < 0:
                continue
            wanted |= 1 << behind
            found.append((box, move, beyond, behind))
    steps: dict[int, int] = {}
    for distance, ring in enumerate(rings(board.width, board.height, solid, player)):
        for cell in bits(ring & wanted):
            steps[cell] = distance
        wanted &= ~ring
        if not wanted:
            break
    return [(box, move, beyond, steps[behind]) for box, move, beyond, behind in found if behind in steps]


def _told(board: Board, start: Place, end: Place, came: dict[Place, tuple[Place, int, str]]) -> Solution:
    pushes: list[Push] = []
    while end != start:
        end, box, move = came[end]
        pushes.append((board.cell(box), move))
    pushes.reverse()
    walk = follow(board, *start, pushes, limit=None, skip=False)
    return Solution(tuple(pushes), walk.moves)
