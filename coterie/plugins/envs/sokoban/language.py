"""The words of Sokoban: how moves, cells and pushes are written and read.

The environment (its oracle writes, its step reads whatever a role hands over) and the roles share it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from coterie.core.errors import PolicyFault
from coterie.plugins.envs.sokoban.board import MOVES, Cell, Push

Rendering = Literal["compact", "prose"]
PushWords = Literal["cells", "offsets", "directions"]
Writes = Literal["moves", "pushes", "code"]

COMPACT_ROLES = ("planner", "executor", "solver")
"""Roles that the compact rendering has a word for."""
ROLES = (*COMPACT_ROLES, "tool", "plan")
MOVERS = ("executor", "solver", "plan")
"""Roles whose action moves the world."""
PROPOSERS = ("planner", "tool")
"""Roles whose action is a plan for the others; with `plan_moves` it moves the world."""

T = TypeVar("T")
_LONG = {"UP": "U", "DOWN": "D", "LEFT": "L", "RIGHT": "R"}
_PUSH: dict[PushWords, re.Pattern[str]] = {
    "cells": re.compile(r"r(-?\d{1,6})c(-?\d{1,6})([UDLR])", re.IGNORECASE),
    "offsets": re.compile(r"([+-]\d{1,6})([+-]\d{1,6})([UDLR])"),
    "directions": re.compile(r"p([UDLR])", re.IGNORECASE),
}
_LOOSE = re.compile(r"(r-?\d{1,6}c-?\d{1,6})[\s:,-]+(up|down|left|right|[UDLR])(?![a-z])", re.IGNORECASE)
_LIST = re.compile(r"\[([^\[\]]*)\]")
_LABEL = re.compile(r"(?:moves|pushes|path|plan|answer)\s*[:=]\s*(.*)", re.IGNORECASE)
_TAIL = 4000
"""Characters from the end of a prose answer in which its list is looked for."""

_MOVES = 100
"""Moves of a program's proposal that are told."""


def cell_word(cell: Cell) -> str:
    return f"r{cell[0]}c{cell[1]}"


def offset_word(cell: Cell, origin: Cell) -> str:
    """A cell as seen from another: `+2-1` is two rows down, one column to the left."""
    return f"{cell[0] - origin[0]:+d}{cell[1] - origin[1]:+d}"


def push_words(pushes: Iterable[Push], origin: Cell, words: PushWords) -> list[str]:
    """`r2c3R`; `+1-2R`, from where the player stands when the message is written; or `pR`."""
    if words == "directions":
        return [f"p{move}" for _, move in pushes]
    return [
        (cell_word(cell) if words == "cells" else offset_word(cell, origin)) + move
        for cell, move in pushes
        if cell is not None
    ]


def write(words: Sequence[str], rendering: Rendering) -> str:
    """A message: `U R R`, or `[U, R, R]` in prose."""
    return " ".join(words) if rendering == "compact" else f"[{', '.join(words)}]"


def listed_moves(moves: Sequence[str]) -> str:
    """For people and prompts; a program may print very many."""
    more = f" and {len(moves) - _MOVES} more" if len(moves) > _MOVES else ""
    return (", ".join(moves[:_MOVES]) or "no move") + more


def vocabulary(width: int, height: int, words: PushWords) -> Iterator[str]:
    """Every word of the compact rendering at a size; pushes as they are spoken."""
    yield from (*COMPACT_ROLES, ":", "plan", *MOVES)
    cells = [(row, column) for row in range(height) for column in range(width)]
    yield from map(cell_word, cells)
    offsets = [(rows, columns) for rows in range(1 - height, height) for columns in range(1 - width, width)]
    for offset in offsets:
        yield from (mark + offset_word(offset, (0, 0)) for mark in "TB#")
    spoken: Sequence[Cell | None] = (
        [None] if words == "directions" else cells if words == "cells" else offsets
    )
    yield from push_words(((cell, move) for cell in spoken for move in MOVES), (0, 0), words)


# ------------------------------------------------------------------------------------------------- reading


def read_moves(text: str, rendering: Rendering) -> tuple[str, ...]:
    """Moves of a message; () of an empty one.

    Prose may reason first: its last list counts, then its last labelled line, then the whole text.

    Raises:
        PolicyFault: it isn't a list of moves.
    """
    if rendering == "compact":
        return tuple(_move(word) for word in text.split())
    return _read_prose(text, lambda part: tuple(_spelt(word) for word in _words(part)), "moves")


def read_pushes(text: str, rendering: Rendering, origin: Cell, words: PushWords) -> tuple[Push, ...]:
    """Pushes of a message, whose cells may lie outside the grid; () of an empty one.

    Raises:
        PolicyFault: it isn't a list of pushes.
    """
    if rendering == "compact":
        return tuple(_push(word, origin, words) for word in text.split())

    def read(part: str) -> tuple[Push, ...]:
        part = _LOOSE.sub(lambda match: f" {match[1]}{match[2][0]} ", part)
        return tuple(_push(word, origin, words) for word in _words(part))

    return _read_prose(text, read, "pushes")


def as_moves(parsed: Any) -> tuple[str, ...] | None:
    """What a role handed over, as moves; None where it isn't any. Text is read as prose."""
    return _as_list(parsed, lambda text: read_moves(text, "prose"), lambda item: _spelt(str(item)))


def as_pushes(parsed: Any, words: PushWords) -> tuple[Push, ...] | None:
    """What a role handed over, as pushes; None where it isn't any. Text is read as prose."""
    plain: PushWords = "directions" if words == "directions" else "cells"

    def one(item: Any) -> Push:
        if isinstance(item, str):
            return _push(item, (0, 0), plain)
        cell, move = item
        if (cell is None) != (words == "directions"):
            raise ValueError("pushes name the box, unless there is only one to name")
        return (None if cell is None else (int(cell[0]), int(cell[1]))), _move(move)

    return _as_list(parsed, lambda text: read_pushes(text, "prose", (0, 0), plain), one)


def _as_list(
    parsed: Any, from_text: Callable[[str], tuple[T, ...]], one: Callable[[Any], T]
) -> tuple[T, ...] | None:
    try:
        if isinstance(parsed, str):
            return from_text(parsed)
        if isinstance(parsed, (list, tuple)):
            return tuple(one(item) for item in parsed)
    except (PolicyFault, ValueError, TypeError, LookupError):
        pass
    return None


def _read_prose(text: str, read: Callable[[str], tuple[T, ...]], what: str) -> tuple[T, ...]:
    text = text.strip()[-_TAIL:]
    if not text:
        return ()
    lists = _LIST.findall(text)
    if lists:
        return read(lists[-1])
    labelled = [match for line in text.splitlines() for match in _LABEL.findall(line)]
    if labelled:
        return read(labelled[-1])
    try:
        return read(text)
    except PolicyFault:
        raise PolicyFault(f"no list of {what} in the answer") from None


def _words(part: str) -> list[str]:
    return [word for word in re.split(r"[\s,;\"'`.*]+", part) if word]


def _move(word: Any) -> str:
    if word not in MOVES:
        raise PolicyFault(f"'{str(word)[:20]}' is not a move")
    return str(word)


def _spelt(word: str) -> str:
    """A move in prose: any case, and `up` for `U`."""
    upper = word.upper()
    return _move(_LONG.get(upper, upper if upper in MOVES else word))


def _push(word: str, origin: Cell, words: PushWords) -> Push:
    match = _PUSH[words].fullmatch(word)
    if match is None:
        raise PolicyFault(f"'{word[:20]}' is not a push")
    if words == "directions":
        return None, match[1].upper()
    row, column, move = int(match[1]), int(match[2]), match[3].upper()
    return ((row, column) if words == "cells" else (origin[0] + row, origin[1] + column)), move
