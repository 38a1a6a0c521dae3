"""Sokoban boards: moves, pushes, distances and deadlocks.

A set of cells (walls, targets, boxes) is an int with one bit per cell (see `board/grid.py`), so boxes have
no order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from coterie.plugins.envs.board.effects import Effect, play as play_items
from coterie.plugins.envs.board.grid import (
    MOVES,
    OPPOSITE,
    Cell,
    Rectangle,
    bits,
    masks,
    neighbours,
    region,
    rings,
)

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

    @property
    def content(self) -> str:
        """A text that is equal for boards that are the same problem.

        Boxes and targets are sets. The player's start within its region changes the first steps and no push,
        so boards that differ in nothing else are one problem and belong to one split.
        """
        reach = region(self.width, self.height, self.walls | self.boxes, self.player)
        return (
            f"{self.width}x{self.height}:{self.walls:x}:{self.targets:x}:{self.boxes:x}"
            f":{(reach & -reach).bit_length() - 1}"
        )

    def rows(self, boxes: int | None = None, player: int | None = None, targets: bool = True) -> list[str]:
        """The usual picture, row by row from the top, without the walls around the grid.

        `#` wall, `.` target, `$` box, `@` player, `*` box on a target, `+` player on a target, `-` free.
        """
        boxes = self.boxes if boxes is None else boxes
        player = self.player if player is None else player
        visible_targets = self.targets if targets else 0

        def mark(cell: int) -> str:
            on = visible_targets >> cell & 1
            if cell == player:
                return "+" if on else "@"
            if boxes >> cell & 1:
                return "*" if on else "$"
            return "#" if self.walls >> cell & 1 else "." if on else "-"

        marks = [mark(cell) for cell in range(self.width * self.height)]
        return ["".join(marks[at : at + self.width]) for at in range(0, len(marks), self.width)]


def board_of(text: str, width: int, height: int) -> Board:
    """The board of a picture's marks; ValueError where it is none, or has more boxes than targets or
    fewer."""

    def cells(marks: str) -> int:
        return sum(1 << cell for cell, mark in enumerate(text) if mark in marks)

    players, boxes, targets = cells("@+"), cells("$*"), cells(".*+")
    if players.bit_count() != 1:
        raise ValueError(f"a grid has one player (@ or +), not {players.bit_count()}")
    if not boxes or boxes.bit_count() != targets.bit_count():
        raise ValueError(f"{boxes.bit_count()} boxes for {targets.bit_count()} targets")
    return Board(width, height, cells("#"), targets, boxes, players.bit_length() - 1)


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
class PushingWalk(Effect):
    """The effect of moves, or of pushes with the walks between them.

    For pushes `items` are the moves that make them; the other fields of an `Effect` count the pushes.
    """

    start: int
    """The player's cell before it."""
    end: int
    boxes: int
    """The boxes after it."""
    played: int = 0
    """The number of legal moves."""
    pushes: int = 0
    """The number of legal moves that pushed a box."""
    recorded_as: ClassVar[str] = (
        "Walk(start, end, boxes, moves=items, written, played, pushes, illegal, tried, readable)"
    )


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
) -> PushingWalk:
    """Play moves until the board is solved, up to the limit, or (unless `skip`) the first illegal move."""
    start, played, pushes = player, 0, 0

    def make(move: str) -> str:
        nonlocal boxes, player, played, pushes
        after = moved(board, boxes, player, move)
        if isinstance(after, str):
            return after
        pushes += after[0] != boxes
        boxes, player = after
        played += 1
        return ""

    effect = play_items(moves, make, lambda: boxes == board.targets, limit=limit, skip=skip)
    return PushingWalk(start=start, end=player, boxes=boxes, played=played, pushes=pushes, **effect)


def follow(
    board: Board, boxes: int, player: int, pushes: Sequence[Push], *, limit: int | None, skip: bool
) -> PushingWalk:
    """Make pushes; the player walks the shortest way to each of them without other pushes.

    A push is illegal where the cell has no box (`no box`, `edge`), where the cell beyond the box isn't free
    (`blocked`), and where the player can't get behind the box (`cut off`).
    """
    start = player
    moves: list[str] = []

    def make(push: Push) -> str:
        nonlocal boxes, player
        way = _way(board, boxes, player, push)
        if isinstance(way, str):
            return way
        walk = play(board, boxes, player, way, limit=None, skip=False)
        boxes, player = walk.boxes, walk.end
        moves.extend(way)
        return ""

    effect = play_items(pushes, make, lambda: boxes == board.targets, limit=limit, skip=skip)
    effect |= {
        "items": tuple(moves),
        "played": len(moves),
        "pushes": effect["tried"] - len(effect["illegal"]),
    }
    return PushingWalk(start=start, end=player, boxes=boxes, **effect)


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
