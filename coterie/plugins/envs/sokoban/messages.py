"""The words of Sokoban: how moves, cells and pushes are written and read.

Shared by the roles and the environment, whose oracle writes messages and whose step reads parsed actions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

from coterie.core.errors import PolicyFault
from coterie.plugins.envs.board import parsing
from coterie.plugins.envs.board.grid import MOVES, Cell
from coterie.plugins.envs.board.parsing import as_list, cell_word, offset_word, read_prose
from coterie.plugins.envs.board.roles import COMPACT_ROLES
from coterie.plugins.envs.common.teams import Rendering
from coterie.plugins.envs.sokoban.board import Push

PushWords = Literal["cells", "offsets", "directions"]
Writes = Literal["moves", "pushes", "code"]

_PUSH: dict[PushWords, re.Pattern[str]] = {
    "cells": re.compile(r"r(-?\d{1,6})c(-?\d{1,6})([UDLR])", re.IGNORECASE),
    "offsets": re.compile(r"([+-]\d{1,6})([+-]\d{1,6})([UDLR])"),
    "directions": re.compile(r"p([UDLR])", re.IGNORECASE),
}
_LOOSE = re.compile(r"(r-?\d{1,6}c-?\d{1,6})[\s:,-]+(up|down|left|right|[UDLR])(?![a-z])", re.IGNORECASE)
_LABELS = parsing.label("moves", "pushes", "path", "plan", "answer")
read_moves = partial(parsing.read_moves, labels=_LABELS)
as_moves = partial(parsing.as_moves, labels=_LABELS)
"""As in `parsing`, with the labels of this game."""


def push_words(pushes: Iterable[Push], origin: Cell, words: PushWords) -> list[str]:
    """The words of pushes: `r2c3R`; `+1-2R`, from the player's cell when the message is written; or `pR`."""
    if words == "directions":
        return [f"p{move}" for _, move in pushes]
    return [
        (cell_word(cell) if words == "cells" else offset_word(cell, origin)) + move
        for cell, move in pushes
        if cell is not None
    ]


def vocabulary(width: int, height: int, words: PushWords) -> Iterator[str]:
    """Every word of the compact rendering at a size, with pushes in the form `words`."""
    yield from (*COMPACT_ROLES, ":", "plan", *MOVES)
    cells = [(row, column) for row in range(height) for column in range(width)]
    yield from map(cell_word, cells)
    offsets = [(rows, columns) for rows in range(1 - height, height) for columns in range(1 - width, width)]
    for offset in offsets:
        yield from (mark + offset_word(offset, (0, 0)) for mark in "TB#")
    boxes: Sequence[Cell | None] = [None] if words == "directions" else cells if words == "cells" else offsets
    yield from push_words(((cell, move) for cell in boxes for move in MOVES), (0, 0), words)


# ------------------------------------------------------------------------------------------------- reading


def read_pushes(text: str, rendering: Rendering, origin: Cell, words: PushWords) -> tuple[Push, ...]:
    """Pushes of a message, whose cells may be outside the grid; () for an empty message.

    Raises:
        PolicyFault: the message isn't a list of pushes.
    """
    if rendering == "compact":
        return tuple(_push(word, origin, words) for word in text.split())

    def read(part: str) -> tuple[Push, ...]:
        part = _LOOSE.sub(lambda match: f" {match[1]}{match[2][0]} ", part)
        return tuple(_push(word, origin, words) for word in parsing.split(part))

    return read_prose(text, read, "pushes", _LABELS)


def as_pushes(parsed: Any, words: PushWords) -> tuple[Push, ...] | None:
    """A role's parsed action as pushes; None where it can't be read. Text is read as prose."""
    plain: PushWords = "directions" if words == "directions" else "cells"

    def from_item(item: Any) -> Push:
        if isinstance(item, str):
            return _push(item, (0, 0), plain)
        cell, move = item
        if (cell is None) != (words == "directions"):
            raise ValueError("pushes name the box, unless there is only one to name")
        return (None if cell is None else (int(cell[0]), int(cell[1]))), parsing.move(move)

    return as_list(parsed, lambda text: read_pushes(text, "prose", (0, 0), plain), from_item)


def _push(word: str, origin: Cell, words: PushWords) -> Push:
    match = _PUSH[words].fullmatch(word)
    if match is None:
        raise PolicyFault(f"'{word[:20]}' is not a push")
    if words == "directions":
        return None, match[1].upper()
    row, column, move = int(match[1]), int(match[2]), match[3].upper()
    return ((row, column) if words == "cells" else (origin[0] + row, origin[1] + column)), move
