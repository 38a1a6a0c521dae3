"""Words of compact messages that the games share, and parsers for lists in compact messages and in prose."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from coterie.core.errors import PolicyFault
from coterie.plugins.envs.board.grid import MOVES, Cell
from coterie.plugins.envs.common.teams import Rendering

T = TypeVar("T")
LIST = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]")
"""A list in square brackets, whose items may be lists."""
CELL = re.compile(r"r(-?\d{1,6})c(-?\d{1,6})", re.IGNORECASE)
_LONG = {"UP": "U", "DOWN": "D", "LEFT": "L", "RIGHT": "R"}
_TAIL = 4000
"""Length of the end of a prose answer that is searched for its list, in characters."""
_MOST_WORDS = 100
"""Words of another role's list that a prompt shows."""


def cell_word(cell: Cell) -> str:
    """A cell's word: `r1c2`."""
    return f"r{cell[0]}c{cell[1]}"


def offset_word(cell: Cell, origin: Cell) -> str:
    """A cell's offset from another: `+2-1` is two rows down, one column to the left."""
    return f"{cell[0] - origin[0]:+d}{cell[1] - origin[1]:+d}"


def nearest_first(mark: str, cells: Iterable[Cell], origin: Cell) -> list[str]:
    """The words of cells of one kind, as offsets after its mark, the nearest to `origin` first."""
    row, column = origin
    return [
        word
        for _, word in sorted(
            (abs(r - row) + abs(c - column), mark + offset_word((r, c), origin)) for r, c in cells
        )
    ]


def write(words: Sequence[str], rendering: Rendering) -> str:
    """A message: `U R R`, or `[U, R, R]` in prose."""
    return " ".join(words) if rendering == "compact" else f"[{', '.join(words)}]"


def listed(words: Sequence[str], nothing: str, most: int = _MOST_WORDS) -> str:
    """The words as part of a sentence: the first `most` of them, and `nothing` for no words."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return (", ".join(words[:most]) or nothing) + more


# ------------------------------------------------------------------------------------------------- reading


def label(*words: str) -> re.Pattern[str]:
    """A pattern for the label of a list without brackets: `moves: U R`. The words are patterns."""
    return re.compile(rf"(?:{'|'.join(words)})\s*[:=]\s*(.*)", re.IGNORECASE)


def ending(text: str, tail: int = _TAIL) -> str:
    """The part of an answer that is searched for its list; empty for an empty answer."""
    return text.strip()[-tail:]


def read_prose(
    text: str, read: Callable[[str], tuple[T, ...]], items: str, labels: re.Pattern[str]
) -> tuple[T, ...]:
    """The items of an answer, which may start with reasoning; () for an empty answer.

    They are those of its last list, else of its last labelled line, else of the whole text.

    Args:
        read: the text between the brackets, or after the label -> its items; raises PolicyFault.
        items: the plural of what is listed, such as "moves".

    Raises:
        PolicyFault: that list or line can't be read; earlier ones are not tried.
    """
    text = ending(text)
    if not text:
        return ()
    lists = LIST.findall(text)
    return read(lists[-1][1:-1]) if lists else read_unlisted(text, read, items, labels)


def read_unlisted(
    text: str, read: Callable[[str], tuple[T, ...]], items: str, labels: re.Pattern[str]
) -> tuple[T, ...]:
    """As `read_prose`, for a text without a list in brackets."""
    labelled = [match for line in text.splitlines() for match in labels.findall(line)]
    if labelled:
        return read(labelled[-1])
    try:
        return read(text)
    except PolicyFault:
        raise PolicyFault(f"no list of {items} in the answer") from None


def as_list(
    parsed: Any, from_text: Callable[[str], tuple[T, ...]], from_item: Callable[[Any], T]
) -> tuple[T, ...] | None:
    """A role's parsed action (a text, or a sequence of items) as items; None where it can't be read."""
    try:
        if isinstance(parsed, str):
            return from_text(parsed)
        if isinstance(parsed, (list, tuple)):
            return tuple(from_item(item) for item in parsed)
    except (PolicyFault, ValueError, TypeError, LookupError, OverflowError):
        pass
    return None


def read_words(
    text: str, rendering: Rendering, read: Callable[[str], T], items: str, labels: re.Pattern[str]
) -> tuple[T, ...]:
    """The items of a message, each one word in both renderings; () for an empty message. Arguments as above.

    Raises:
        PolicyFault: the message isn't a list of such words.
    """
    if rendering == "compact":
        return tuple(map(read, text.split()))
    return read_prose(text, lambda part: tuple(map(read, split(part))), items, labels)


def split(part: str) -> list[str]:
    """The words of a list in prose."""
    return [word for word in re.split(r"[\s,;\"'`.*]+", part) if word]


def read_cell(word: str) -> Cell:
    """The cell of a word such as `r1c2`, maybe outside the grid; raises PolicyFault where it is none."""
    match = CELL.fullmatch(word)
    if match is None:
        raise PolicyFault(f"'{word[:20]}' is not a cell")
    return int(match[1]), int(match[2])


# --------------------------------------------------------------------------------------------------- moves


def move(word: Any) -> str:
    """The word as a move; raises PolicyFault where it is none."""
    if word not in MOVES:
        raise PolicyFault(f"'{str(word)[:20]}' is not a move")
    return str(word)


def read_moves(text: str, rendering: Rendering, labels: re.Pattern[str]) -> tuple[str, ...]:
    """Moves of a message; () for an empty one. In prose a move may be in any case, and `up` for `U`.

    Raises:
        PolicyFault: the message isn't a list of moves.
    """
    if rendering == "compact":
        return tuple(move(word) for word in text.split())
    return read_prose(text, lambda part: tuple(_spelt(word) for word in split(part)), "moves", labels)


def as_moves(parsed: Any, labels: re.Pattern[str]) -> tuple[str, ...] | None:
    """A role's parsed action as moves; None where it can't be read. Text is read as prose."""
    return as_list(parsed, lambda text: read_moves(text, "prose", labels), lambda item: _spelt(str(item)))


def _spelt(word: str) -> str:
    upper = word.upper()
    return move(_LONG.get(upper, upper if upper in MOVES else word))
