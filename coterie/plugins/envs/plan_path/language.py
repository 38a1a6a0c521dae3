"""The words of Plan-Path: how moves, cells and way-points are written and read.

The environment (its oracle writes, its step reads whatever a role hands over) and the roles share it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Literal, TypeVar

from coterie.core.errors import PolicyFault
from coterie.plugins.envs.plan_path.grid import MOVES, Cell

Rendering = Literal["compact", "prose"]
Language = Literal["waypoints", "legs", "moves"]
WaypointWords = Literal["cells", "offsets"]

COMPACT_ROLES = ("planner", "executor", "solver")
"""Roles that the compact rendering has a word for."""
ROLES = (*COMPACT_ROLES, "tool", "plan")
MOVERS = ("executor", "solver", "plan")
"""Roles whose action moves the world."""
PROPOSERS = ("planner", "tool")
"""Roles whose action is a plan for the others; with `plan_moves` it moves the world."""

T = TypeVar("T")
_LONG = {"UP": "U", "DOWN": "D", "LEFT": "L", "RIGHT": "R"}
_CELL = re.compile(r"r(-?\d{1,6})c(-?\d{1,6})", re.IGNORECASE)
_PAIR = re.compile(r"[(\[]\s*(-?\d{1,6})\s*,\s*(-?\d{1,6})\s*[)\]]")
_LEG = re.compile(r"([UDLR])([1-9]\d{0,2})", re.IGNORECASE)
_OFFSET = re.compile(r"([+-]\d{1,6})([+-]\d{1,6})")
_LIST = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]")
_LABEL = re.compile(r"(?:moves|path|plan|answer|way-?points)\s*[:=]\s*(.*)", re.IGNORECASE)
_TAIL = 4000
"""Characters from the end of a prose answer in which its list is looked for."""


def cell_word(cell: Cell) -> str:
    return f"r{cell[0]}c{cell[1]}"


def offset_word(cell: Cell, origin: Cell) -> str:
    """A cell as seen from another: `+2-1` is two rows down, one column to the left."""
    return f"{cell[0] - origin[0]:+d}{cell[1] - origin[1]:+d}"


def waypoint_words(cells: Iterable[Cell], origin: Cell, words: WaypointWords) -> list[str]:
    return [cell_word(cell) if words == "cells" else offset_word(cell, origin) for cell in cells]


def write(words: Sequence[str], rendering: Rendering) -> str:
    """A message: `U R R`, or `[U, R, R]` in prose."""
    return " ".join(words) if rendering == "compact" else f"[{', '.join(words)}]"


def leg_words(moves: Sequence[str]) -> list[str]:
    """Moves as straight legs: `R R D` is `R2 D1`."""
    return [f"{move}{len(list(run))}" for move, run in groupby(moves)]


def leg_vocabulary(width: int, height: int) -> list[str]:
    """Every leg that fits into the grid."""
    return [f"{move}{length}" for move in MOVES for length in range(1, max(width, height))]


def walked(legs: Iterable[str]) -> tuple[str, ...]:
    """The moves of legs: `R2 D1` is `R R D`."""
    return tuple(leg[0] for leg in legs for _ in range(int(leg[1:])))


def vocabulary(width: int, height: int, language: Language) -> Iterator[str]:
    """Every word of the compact rendering at a size; legs only where they are spoken."""
    yield from (*COMPACT_ROLES, ":", "plan", *MOVES)
    yield from (cell_word((row, column)) for row in range(height) for column in range(width))
    for rows in range(1 - height, height):
        for columns in range(1 - width, width):
            offset = offset_word((rows, columns), (0, 0))
            yield from (f"G{offset}", f"#{offset}", offset)
    if language == "legs":
        yield from leg_vocabulary(width, height)


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


def read_waypoints(text: str, rendering: Rendering, origin: Cell, words: WaypointWords) -> tuple[Cell, ...]:
    """Way-points of a message as (row, column), which may lie outside the grid; () of an empty one.

    Raises:
        PolicyFault: it isn't a list of way-points.
    """
    if rendering == "compact":
        return tuple(_waypoint(word, origin, words) for word in text.split())
    return _read_prose(text, _cells, "way-points")


def read_legs(text: str, rendering: Rendering) -> tuple[str, ...]:
    """Straight legs of a message, such as `R2 D1`; () of an empty one.

    Raises:
        PolicyFault: it isn't a list of legs.
    """
    if rendering == "compact":
        return tuple(_leg(word) for word in text.split())
    return _read_prose(text, lambda part: tuple(_leg(word) for word in _words(part)), "legs")


def as_moves(parsed: Any) -> tuple[str, ...] | None:
    """What a role handed over, as moves; None where it isn't any. Text is read as prose."""
    return _as_list(parsed, lambda text: read_moves(text, "prose"), lambda item: _spelt(str(item)))


def as_legs(parsed: Any) -> tuple[str, ...] | None:
    """What a role handed over, as legs; None where it isn't any. Text is read as prose."""
    return _as_list(parsed, lambda text: read_legs(text, "prose"), lambda item: _leg(str(item)))


def as_waypoints(parsed: Any) -> tuple[Cell, ...] | None:
    """What a role handed over, as way-points; None where it isn't any. Text is read as prose."""

    def one(item: Any) -> Cell:
        if isinstance(item, str):
            return _waypoint(item, (0, 0), "cells")
        row, column = item
        return int(row), int(column)

    return _as_list(parsed, lambda text: read_waypoints(text, "prose", (0, 0), "cells"), one)


def _as_list(
    parsed: Any, from_text: Callable[[str], tuple[T, ...]], one: Callable[[Any], T]
) -> tuple[T, ...] | None:
    try:
        if isinstance(parsed, str):
            return from_text(parsed)
        if isinstance(parsed, (list, tuple)):
            return tuple(one(item) for item in parsed)
    except (PolicyFault, ValueError, TypeError):
        pass
    return None


def _read_prose(text: str, read: Callable[[str], tuple[T, ...]], what: str) -> tuple[T, ...]:
    text = text.strip()[-_TAIL:]
    if not text:
        return ()
    lists = _LIST.findall(text)
    if lists:
        return read(lists[-1][1:-1])
    labelled = [match for line in text.splitlines() for match in _LABEL.findall(line)]
    if labelled:
        return read(labelled[-1])
    try:
        return read(text)
    except PolicyFault:
        raise PolicyFault(f"no list of {what} in the answer") from None


def _words(part: str) -> list[str]:
    return [word for word in re.split(r"[\s,;\"'`.*]+", part) if word]


def _move(word: str) -> str:
    if word not in MOVES:
        raise PolicyFault(f"'{word[:20]}' is not a move")
    return word


def _leg(word: str) -> str:
    match = _LEG.fullmatch(word)
    if match is None:
        raise PolicyFault(f"'{word[:20]}' is not a leg")
    return word.upper()


def _spelt(word: str) -> str:
    """A move in prose: any case, and `up` for `U`."""
    upper = word.upper()
    return _move(_LONG.get(upper, upper if upper in MOVES else word))


def _waypoint(word: str, origin: Cell, words: WaypointWords) -> Cell:
    match = (_CELL if words == "cells" else _OFFSET).fullmatch(word)
    if match is None:
        raise PolicyFault(f"'{word[:20]}' is not a way-point")
    row, column = int(match[1]), int(match[2])
    return (row, column) if words == "cells" else (origin[0] + row, origin[1] + column)


def _cells(part: str) -> tuple[Cell, ...]:
    """`r1c2, r3c2` or `(1, 2), (3, 2)` or `[1, 2], [3, 2]`."""
    rest = _PAIR.sub(lambda match: f" r{match[1]}c{match[2]} ", part)
    return tuple(_waypoint(word, (0, 0), "cells") for word in _words(rest))
