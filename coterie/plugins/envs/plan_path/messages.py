"""The words of Plan-Path: how moves, cells and way-points are written and read.

Shared by the roles and the environment, whose oracle writes messages and whose step reads parsed actions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Literal

from coterie.core.errors import PolicyFault
from coterie.plugins.envs.board import parsing
from coterie.plugins.envs.board.grid import MOVES, Cell
from coterie.plugins.envs.board.parsing import CELL, as_list, cell_word, offset_word, read_prose, read_words
from coterie.plugins.envs.board.roles import COMPACT_ROLES
from coterie.plugins.envs.common.teams import Rendering

Language = Literal["waypoints", "legs", "moves"]
WaypointWords = Literal["cells", "offsets"]

_PAIR = re.compile(r"[(\[]\s*(-?\d{1,6})\s*,\s*(-?\d{1,6})\s*[)\]]")
_LEG = re.compile(r"([UDLR])([1-9]\d{0,2})", re.IGNORECASE)
_OFFSET = re.compile(r"([+-]\d{1,6})([+-]\d{1,6})")
_LABELS = parsing.label("moves", "path", "plan", "answer", "way-?points")
read_moves = partial(parsing.read_moves, labels=_LABELS)
as_moves = partial(parsing.as_moves, labels=_LABELS)
"""As in `parsing`, with the labels of this game."""


def waypoint_words(cells: Iterable[Cell], origin: Cell, words: WaypointWords) -> list[str]:
    """The words of way-points: cells, or offsets from `origin`."""
    return [cell_word(cell) if words == "cells" else offset_word(cell, origin) for cell in cells]


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
    """Every word of the compact rendering at a size; legs only if the planner writes them."""
    yield from (*COMPACT_ROLES, ":", "plan", *MOVES)
    yield from (cell_word((row, column)) for row in range(height) for column in range(width))
    for rows in range(1 - height, height):
        for columns in range(1 - width, width):
            offset = offset_word((rows, columns), (0, 0))
            yield from (f"G{offset}", f"#{offset}", offset)
    if language == "legs":
        yield from leg_vocabulary(width, height)


# ------------------------------------------------------------------------------------------------- reading


def read_waypoints(text: str, rendering: Rendering, origin: Cell, words: WaypointWords) -> tuple[Cell, ...]:
    """Way-points of a message as (row, column), which may be outside the grid; () for an empty message.

    Raises:
        PolicyFault: the message isn't a list of way-points.
    """
    if rendering == "compact":
        return tuple(_waypoint(word, origin, words) for word in text.split())
    return read_prose(text, _cells, "way-points", _LABELS)


def read_legs(text: str, rendering: Rendering) -> tuple[str, ...]:
    """Straight legs of a message, such as `R2 D1`; () for an empty message.

    Raises:
        PolicyFault: the message isn't a list of legs.
    """
    return read_words(text, rendering, _leg, "legs", _LABELS)


def as_legs(parsed: Any) -> tuple[str, ...] | None:
    """A role's parsed action as legs; None where it can't be read. Text is read as prose."""
    return as_list(parsed, lambda text: read_legs(text, "prose"), lambda item: _leg(str(item)))


def as_waypoints(parsed: Any) -> tuple[Cell, ...] | None:
    """A role's parsed action as way-points; None where it can't be read. Text is read as prose."""

    def from_item(item: Any) -> Cell:
        if isinstance(item, str):
            return _waypoint(item, (0, 0), "cells")
        row, column = item
        return int(row), int(column)

    return as_list(parsed, lambda text: read_waypoints(text, "prose", (0, 0), "cells"), from_item)


def _leg(word: str) -> str:
    match = _LEG.fullmatch(word)
    if match is None:
        raise PolicyFault(f"'{word[:20]}' is not a leg")
    return word.upper()


def _waypoint(word: str, origin: Cell, words: WaypointWords) -> Cell:
    match = (CELL if words == "cells" else _OFFSET).fullmatch(word)
    if match is None:
        raise PolicyFault(f"'{word[:20]}' is not a way-point")
    row, column = int(match[1]), int(match[2])
    return (row, column) if words == "cells" else (origin[0] + row, origin[1] + column)


def _cells(part: str) -> tuple[Cell, ...]:
    """`r1c2, r3c2` or `(1, 2), (3, 2)` or `[1, 2], [3, 2]`."""
    words = _PAIR.sub(lambda match: f" r{match[1]}c{match[2]} ", part)
    return tuple(_waypoint(word, (0, 0), "cells") for word in parsing.split(words))
