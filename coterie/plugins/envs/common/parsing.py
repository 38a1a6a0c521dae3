"""Words that the games share, and how lists of words are read, in compact messages and out of prose."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from coterie.core.errors import PolicyFault
from coterie.plugins.envs.common.grid import MOVES, Cell

Rendering = Literal["compact", "prose"]

T = TypeVar("T")
LIST = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]")
"""A list in square brackets, whose items may be lists."""
_LONG = {"UP": "U", "DOWN": "D", "LEFT": "L", "RIGHT": "R"}
_TAIL = 4000
"""Characters from the end of a prose answer in which its list is looked for."""
_TOLD = 100
"""Words of another's list that are told."""


def cell_word(cell: Cell) -> str:
    return f"r{cell[0]}c{cell[1]}"


def offset_word(cell: Cell, origin: Cell) -> str:
    """A cell as seen from another: `+2-1` is two rows down, one column to the left."""
    return f"{cell[0] - origin[0]:+d}{cell[1] - origin[1]:+d}"


def write(words: Sequence[str], rendering: Rendering) -> str:
    """A message: `U R R`, or `[U, R, R]` in prose."""
    return " ".join(words) if rendering == "compact" else f"[{', '.join(words)}]"


def listed(words: Sequence[str], nothing: str, most: int = _TOLD) -> str:
    """For sentences; of very many only the first."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return (", ".join(words[:most]) or nothing) + more


# ------------------------------------------------------------------------------------------------- reading


def label(*words: str) -> re.Pattern[str]:
    """What introduces a list without brackets: `moves: U R`. The words are patterns."""
    return re.compile(rf"(?:{'|'.join(words)})\s*[:=]\s*(.*)", re.IGNORECASE)


def ending(text: str, tail: int = _TAIL) -> str:
    """Where an answer's list is looked for; empty where there is no answer."""
    return text.strip()[-tail:]


def read_prose(
    text: str, read: Callable[[str], tuple[T, ...]], what: str, labels: re.Pattern[str]
) -> tuple[T, ...]:
    """The items of an answer that may reason first: of its last list, else of its last labelled line, else of
    the whole text. () of an empty one.

    Args:
        read: what stands between the brackets, or behind the label -> its items; raises PolicyFault.

    Raises:
        PolicyFault: that can't be read; what comes before it is not asked.
    """
    text = ending(text)
    if not text:
        return ()
    lists = LIST.findall(text)
    return read(lists[-1][1:-1]) if lists else read_unlisted(text, read, what, labels)


def read_unlisted(
    text: str, read: Callable[[str], tuple[T, ...]], what: str, labels: re.Pattern[str]
) -> tuple[T, ...]:
    """As `read_prose`, of a text without a list."""
    labelled = [match for line in text.splitlines() for match in labels.findall(line)]
    if labelled:
        return read(labelled[-1])
    try:
        return read(text)
    except PolicyFault:
        raise PolicyFault(f"no list of {what} in the answer") from None


def as_list(
    parsed: Any, from_text: Callable[[str], tuple[T, ...]], one: Callable[[Any], T]
) -> tuple[T, ...] | None:
    """What a role handed over (a text, or items), as items; None where it isn't any."""
    try:
        if isinstance(parsed, str):
            return from_text(parsed)
        if isinstance(parsed, (list, tuple)):
            return tuple(one(item) for item in parsed)
    except (PolicyFault, ValueError, TypeError, LookupError, OverflowError):
        pass
    return None


def split(part: str) -> list[str]:
    """The words of a list in prose."""
    return [word for word in re.split(r"[\s,;\"'`.*]+", part) if word]


# --------------------------------------------------------------------------------------------------- moves


def move(word: Any) -> str:
    """The word; raises PolicyFault where it is no move."""
    if word not in MOVES:
        raise PolicyFault(f"'{str(word)[:20]}' is not a move")
    return str(word)


def read_moves(text: str, rendering: Rendering, labels: re.Pattern[str]) -> tuple[str, ...]:
    """Moves of a message; () of an empty one. In prose a move is in any case, and may be `up` for `U`.

    Raises:
        PolicyFault: it isn't a list of moves.
    """
    if rendering == "compact":
        return tuple(move(word) for word in text.split())
    return read_prose(text, lambda part: tuple(_spelt(word) for word in split(part)), "moves", labels)


def as_moves(parsed: Any, labels: re.Pattern[str]) -> tuple[str, ...] | None:
    """What a role handed over, as moves; None where it isn't any. Text is read as prose."""
    return as_list(parsed, lambda text: read_moves(text, "prose", labels), lambda item: _spelt(str(item)))


def _spelt(word: str) -> str:
    upper = word.upper()
    return move(_LONG.get(upper, upper if upper in MOVES else word))
