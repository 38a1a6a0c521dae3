"""The world of Sokoban: boards, moves, pushes, distances, deadlocks.

A set of cells (walls, targets, boxes) is an int with one bit a cell (see `cells.py`), so boxes have no order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from coterie.plugins.envs.common.grid import MOVES, OPPOSITE, Cell, Rectangle, bits, masks, neighbours, rings

Push = tuple[Cell | None, str]
"""(the cell of the box, direction); no cell: the only box."""


@dataclass(frozen=True, slots=True)
class Board(Rectangle):
    """One problem: where the walls and the targets are, where the boxes and the player start."""

    walls: int
    """Bit r * width + c is set where there is a wall."""
    targets: int
    boxes: int
    player: int

    def left(self, boxes: int) -> int:
        """Boxes that are on no target."""
        return (boxes & ~self.targets).bit_count()

    def distance(self, boxes: int) -> int:
        """Pushes that the boxes are from their nearest targets, each as if it were alone; summed.

        A box that can't be brought to any target counts as `width * height`, more than any that can.
        """
        field, _ = lone_box(self.width, self.height, self.walls, self.targets)
        cap = self.width * self.height
        return sum(cap if field[cell] < 0 else field[cell] for cell in bits(boxes))


def route(width: int, height: int, blocked: int, start: int, end: int) -> tuple[str, ...] | None:
    """Moves of a shortest walk, of equals the first in U, D, L, R; None where there is no way."""
    fields = []
    for ring in rings(width, height, blocked, end):
        if ring >> start & 1:
            break
        fields.append(ring)
    else:
        return None
    near, path, here = neighbours(width, height), [], start
    for ring in reversed(fields):
        move = next(move for move, there in near[here].items() if there >= 0 and ring >> there & 1)
        path.append(move)
        here = near[here][move]
    return tuple(path)


# ------------------------------------------------------------------------------------------------ deadlocks


@lru_cache(maxsize=8192)
def lone_box(width: int, height: int, walls: int, targets: int) -> tuple[tuple[int, ...], int]:
    """How far a box is from the targets, were it alone and the player free to stand anywhere.

    Found by pulling from the targets. No real push does better, so the field is a lower bound of pushes,
    and a cell that it doesn't reach is dead: a box there never comes to a target.

    Returns:
        Pushes from every cell to the nearest target, -1 where dead, shape (height * width,); the dead
        cells that are no walls, as a set.
    """
    near = neighbours(width, height)
    field = [-1] * (width * height)
    ring = list(bits(targets))
    for cell in ring:
        field[cell] = 0
    while ring:
        after = []
        for cell in ring:
            for move in MOVES:
                there = near[cell][move]  # the box is pulled to here, and the player stands beyond
                if there < 0 or walls >> there & 1 or field[there] >= 0:
                    continue
                beyond = near[there][move]
                if beyond >= 0 and not walls >> beyond & 1:
                    field[there] = field[cell] + 1
                    after.append(there)
        ring = after
    dead = sum(1 << cell for cell, distance in enumerate(field) if distance < 0 and not walls >> cell & 1)
    return tuple(field), dead


def deadlocked(board: Board, boxes: int) -> bool:
    """Whether the boxes can be seen to be stuck for good; False promises nothing.

    Two tests, both sound: a box on a dead cell (see `lone_box`); and boxes that freeze each other, one of
    them off the targets. The frozen are found as what is left when every box that can be pushed along some
    axis is taken away, again and again. A box can't be pushed along an axis where a wall, the edge or
    another frozen box is beside it, or where it would land on a dead cell either way.
    """
    _, dead = lone_box(board.width, board.height, board.walls, board.targets)
    if boxes & dead:
        return True
    return bool(frozen(board, boxes, dead) & ~board.targets)


def frozen(board: Board, boxes: int, dead: int) -> int:
    """The boxes that can't be pushed before one of the others among them was: none of them, ever."""
    width = board.width
    everything, not_left, not_right = masks(width, board.height)
    top, bottom = (1 << width) - 1, ((1 << width) - 1) << width * (board.height - 1)
    # Beside which cells is a given set: above, below, to the left, to the right of the cell.
    dead_across = (dead << 1 & not_left) & (dead >> 1 & not_right)
    dead_along = (dead << width & everything) & (dead >> width)
    left = boxes
    while True:
        solid = board.walls | left
        across = (solid << 1 & not_left) | (solid >> 1 & not_right) | everything & ~not_left
        across |= everything & ~not_right | dead_across
        along = solid << width | solid >> width | top | bottom | dead_along
        still = left & across & along
        if still == left:
            return left
        left = still


# -------------------------------------------------------------------------------------------- moves, pushes


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What became of a message: of moves, or of pushes with the walks between them."""

    start: int
    """Where the player stood."""
    end: int
    boxes: int
    """The boxes after it."""
    moves: tuple[str, ...]
    """As written, without those beyond the limit; of pushes: what the player would do for them."""
    written: int
    """How many words were written, those beyond the limit included."""
    played: int = 0
    """How many moves moved the player."""
    pushes: int = 0
    """How many of these moved a box."""
    illegal: tuple[tuple[int, str], ...] = ()
    """(number of the word counted from 1, what was in the way) where one was refused."""
    tried: int = 0
    """How many words were played or refused; a walk that stops leaves the rest untried."""
    readable: bool = True


def moved(board: Board, boxes: int, player: int, move: str) -> tuple[int, int] | str:
    """The boxes and the player after a move, or what is in the way: `edge`, `wall` or `box`."""
    near = neighbours(board.width, board.height)
    there = near[player][move]
    if there < 0:
        return "edge"
    if board.walls >> there & 1:
        return "wall"
    if boxes >> there & 1:
        beyond = near[there][move]
        if beyond < 0 or (board.walls | boxes) >> beyond & 1:
            return "box"
        boxes ^= 1 << there | 1 << beyond
    return boxes, there


def play(
    board: Board, boxes: int, player: int, moves: Sequence[str], *, limit: int | None, skip: bool
) -> Walk:
    """Play moves. It ends when all boxes are on targets, after `limit` moves, and at the first illegal
    move unless `skip`."""
    read, start, played, pushes, tried = tuple(moves[:limit]), player, 0, 0, 0
    illegal: list[tuple[int, str]] = []
    for number, move in enumerate(read, 1):
        if boxes == board.targets:
            break
        tried = number
        after = moved(board, boxes, player, move)
        if isinstance(after, str):
            illegal.append((number, after))
            if not skip:
                break
            continue
        pushes += after[0] != boxes
        boxes, player = after
        played += 1
    return Walk(
        start=start,
        end=player,
        boxes=boxes,
        moves=read,
        written=len(moves),
        played=played,
        pushes=pushes,
        illegal=tuple(illegal),
        tried=tried,
    )


def follow(
    board: Board, boxes: int, player: int, pushes: Sequence[Push], *, limit: int | None, skip: bool
) -> Walk:
    """Carry out pushes, the player walking the shortest way to each without pushing anything.

    A push is illegal where there is no such box (`no box`, `edge`), where what is beyond the box is in the
    way (`blocked`), and where the player can't get behind it (`cut off`).
    """
    start, tried = player, 0
    moves: list[str] = []
    illegal: list[tuple[int, str]] = []
    for number, push in enumerate(pushes[:limit], 1):
        if boxes == board.targets:
            break
        tried = number
        way = _way(board, boxes, player, push)
        if isinstance(way, str):
            illegal.append((number, way))
            if not skip:
                break
            continue
        walk = play(board, boxes, player, way, limit=None, skip=False)
        boxes, player = walk.boxes, walk.end
        moves += way
    return Walk(
        start=start,
        end=player,
        boxes=boxes,
        moves=tuple(moves),
        written=len(pushes),
        played=len(moves),
        pushes=tried - len(illegal),
        illegal=tuple(illegal),
        tried=tried,
    )


def _way(board: Board, boxes: int, player: int, push: Push) -> tuple[str, ...] | str:
    """The moves of a push, or what is wrong with it."""
    cell, move = push
    box = boxes.bit_length() - 1 if cell is None else board.index(cell)
    if box is None:
        return "edge"
    if not boxes >> box & 1:
        return "no box"
    near = neighbours(board.width, board.height)[box]
    beyond, behind = near[move], near[OPPOSITE[move]]
    if beyond < 0 or (board.walls | boxes) >> beyond & 1:
        return "blocked"
    if behind < 0 or (board.walls | boxes) >> behind & 1:
        return "cut off"
    way = route(board.width, board.height, board.walls | boxes, player, behind)
    return "cut off" if way is None else (*way, move)
