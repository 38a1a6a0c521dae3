"""Sokoban boards: moves, pushes, distances and deadlocks.

A set of cells (walls, targets, boxes) is an int with one bit per cell (see `common/grid.py`), so boxes have
no order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from coterie.plugins.envs.common.grid import MOVES, OPPOSITE, Cell, Rectangle, bits, masks, neighbours, rings

Push = tuple[Cell | None, str]
"""(the cell of the box, direction); None for the cell: the only box."""


@dataclass(frozen=True, slots=True)
class Board(Rectangle):
    """One problem: the walls and targets, and the start of the boxes and the player."""

    walls: int
    """Bit r * width + c is set where cell (r, c) is a wall."""
    targets: int
    boxes: int
    player: int

    def left(self, boxes: int) -> int:
        """The number of boxes that are on no target."""
        return (boxes & ~self.targets).bit_count()

    def distance(self, boxes: int) -> int:
        """The sum over boxes of the pushes to the nearest target, each box as if it were alone.

        A box that can't reach any target counts as `width * height`, more than any that can.
        """
        field, _ = lone_box(self.width, self.height, self.walls, self.targets)
        cap = self.width * self.height
        return sum(cap if field[cell] < 0 else field[cell] for cell in bits(boxes))


def route(width: int, height: int, blocked: int, start: int, end: int) -> tuple[str, ...] | None:
    """Moves of a shortest walk; ties go to the first of U, D, L, R; None where there is no way."""
    fields = []
    for ring in rings(width, height, blocked, end):
        if ring >> start & 1:
            break
        fields.append(ring)
    else:
        return None
    next_to, path, cell = neighbours(width, height), [], start
    for ring in reversed(fields):
        move = next(move for move, other in next_to[cell].items() if other >= 0 and ring >> other & 1)
        path.append(move)
        cell = next_to[cell][move]
    return tuple(path)


# ------------------------------------------------------------------------------------------------ deadlocks


@lru_cache(maxsize=8192)
def lone_box(width: int, height: int, walls: int, targets: int) -> tuple[tuple[int, ...], int]:
    """The pushes from every cell to the nearest target, for a lone box and a player that can stand anywhere.

    Computed by pulling from the targets. The distances are lower bounds of the pushes on a real board, and a
    cell that they don't reach is dead: a box there never reaches a target.

    Returns:
        Pushes from every cell to the nearest target, -1 where dead, shape (height * width,); the set of dead
        cells that are no walls.
    """
    next_to = neighbours(width, height)
    field = [-1] * (width * height)
    ring = list(bits(targets))
    for cell in ring:
        field[cell] = 0
    while ring:
        after = []
        for cell in ring:
            for move in MOVES:
                pulled = next_to[cell][move]  # the box's cell after the pull; the player stands beyond it
                if pulled < 0 or walls >> pulled & 1 or field[pulled] >= 0:
                    continue
                beyond = next_to[pulled][move]
                if beyond >= 0 and not walls >> beyond & 1:
                    field[pulled] = field[cell] + 1
                    after.append(pulled)
        ring = after
    dead = sum(1 << cell for cell, distance in enumerate(field) if distance < 0 and not walls >> cell & 1)
    return tuple(field), dead


def deadlocked(board: Board, boxes: int) -> bool:
    """Whether a deadlock is detected; True is certain, False is not.

    Two tests: a box on a dead cell (see `lone_box`); and boxes that freeze each other, one of them off the
    targets. The frozen boxes are those that remain after removing, again and again, every box that can be
    pushed along some axis. A box can't be pushed along an axis where a wall, the edge or another frozen box
    is next to it, or where it would land on a dead cell either way.
    """
    _, dead = lone_box(board.width, board.height, board.walls, board.targets)
    if boxes & dead:
        return True
    return bool(frozen(board, boxes, dead) & ~board.targets)


def frozen(board: Board, boxes: int, dead: int) -> int:
    """The set of boxes that block each other, so that none of them can ever be pushed."""
    width = board.width
    everything, not_left, not_right = masks(width, board.height)
    top, bottom = (1 << width) - 1, ((1 << width) - 1) << width * (board.height - 1)
    # Cells with a dead cell on both sides: to the left and right, above and below.
    dead_across = (dead << 1 & not_left) & (dead >> 1 & not_right)
    dead_along = (dead << width & everything) & (dead >> width)
    remaining = boxes
    while True:
        solid = board.walls | remaining
        across = (solid << 1 & not_left) | (solid >> 1 & not_right) | everything & ~not_left
        across |= everything & ~not_right | dead_across
        along = solid << width | solid >> width | top | bottom | dead_along
        stuck = remaining & across & along
        if stuck == remaining:
            return remaining
        remaining = stuck


# -------------------------------------------------------------------------------------------- moves, pushes


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The effect of a message: of moves, or of pushes with the walks between them."""

    start: int
    """The player's cell before it."""
    end: int
    boxes: int
    """The boxes after it."""
    moves: tuple[str, ...]
    """As written, without those beyond the limit; for pushes: the moves that make them."""
    written: int
    """The number of words in the message, those beyond the limit included."""
    played: int = 0
    """The number of legal moves."""
    pushes: int = 0
    """The number of legal moves that pushed a box."""
    illegal: tuple[tuple[int, str], ...] = ()
    """(number of the word counted from 1, obstacle) of every refused one."""
    tried: int = 0
    """The number of words played or refused; after a stop the rest are not tried."""
    readable: bool = True


def moved(board: Board, boxes: int, player: int, move: str) -> tuple[int, int] | str:
    """The boxes and the player after a move, or the obstacle: `edge`, `wall` or `box`."""
    next_to = neighbours(board.width, board.height)
    target = next_to[player][move]
    if target < 0:
        return "edge"
    if board.walls >> target & 1:
        return "wall"
    if boxes >> target & 1:
        beyond = next_to[target][move]
        if beyond < 0 or (board.walls | boxes) >> beyond & 1:
            return "box"
        boxes ^= 1 << target | 1 << beyond
    return boxes, target


def play(
    board: Board, boxes: int, player: int, moves: Sequence[str], *, limit: int | None, skip: bool
) -> Walk:
    """Play moves until the board is solved, up to the limit, or (unless `skip`) the first illegal move."""
    within_limit, start, played, pushes, tried = tuple(moves[:limit]), player, 0, 0, 0
    illegal: list[tuple[int, str]] = []
    for number, move in enumerate(within_limit, 1):
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
        moves=within_limit,
        written=len(moves),
        played=played,
        pushes=pushes,
        illegal=tuple(illegal),
        tried=tried,
    )


def follow(
    board: Board, boxes: int, player: int, pushes: Sequence[Push], *, limit: int | None, skip: bool
) -> Walk:
    """Make pushes; the player walks the shortest way to each of them without other pushes.

    A push is illegal where the cell has no box (`no box`, `edge`), where the cell beyond the box isn't free
    (`blocked`), and where the player can't get behind the box (`cut off`).
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
    """The moves of a push, or the reason why it is illegal."""
    cell, move = push
    box = boxes.bit_length() - 1 if cell is None else board.index(cell)
    if box is None:
        return "edge"
    if not boxes >> box & 1:
        return "no box"
    next_to = neighbours(board.width, board.height)[box]
    beyond, behind = next_to[move], next_to[OPPOSITE[move]]
    if beyond < 0 or (board.walls | boxes) >> beyond & 1:
        return "blocked"
    if behind < 0 or (board.walls | boxes) >> behind & 1:
        return "cut off"
    way = route(board.width, board.height, board.walls | boxes, player, behind)
    return "cut off" if way is None else (*way, move)
