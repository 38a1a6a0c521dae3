"""Words of the grid games: how lists in compact messages and in prose are read, and what prompts and
feedback say of their items."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from coterie.core.errors import PolicyFault
from coterie.plugins.envs.board.effects import Effect
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


@dataclass(frozen=True, kw_only=True)
class Wording:
    """How prompts and feedback speak of the items of a message: moves, assignments, ...

    Sentences may have `{who}` and `{whose}` (the mover), `{start}` and `{end}` (as the game names them).
    """

    item: str = "move"
    items: str = "moves"
    word: Callable[[Any], str] = str
    """An item -> its word."""
    read: Callable[[str], Any] = str
    """A word -> its item; raises PolicyFault. For games whose messages are lists of such words."""
    none: str = "no move"
    """The words of an empty list."""
    most_listed: int = 100
    verb: str = "played"
    reasons: Mapping[str, str] = field(default_factory=dict)
    """The reason of a refusal -> the end of a sentence on it. Empty: refused items and the limit have no
    sentence."""
    most_refused: int | None = None
    """Refused items with a sentence of their own; None: all."""
    unread: str = ""
    """What follows `couldn't be read as moves`."""
    nothing: str = "{who} played no move last turn."
    start: str = ""
    """What follows `played 2 of 3 moves`."""
    stopped: str = "The walk stopped there."
    end: str = ""
    """The last sentence on a message."""
    limit_first: bool = False
    """Whether the sentence on the limit comes before `stopped`."""

    def read_items(self, text: str, rendering: Rendering) -> tuple[Any, ...]:
        """The items of a message; () for an empty one.

        Raises:
            PolicyFault: the message isn't a list of the wording's words.
        """
        labels = label(self.items, "plan", "answer")
        return read_words(text, rendering, self.read, self.items, labels)

    def as_items(self, parsed: Any) -> tuple[Any, ...] | None:
        """A parsed action as items; None where it can't be read. Text is read as prose."""
        return as_list(
            parsed,
            lambda text: self.read_items(text, "prose"),
            lambda item: self.read(item if isinstance(item, str) else self.word(item)),
        )

    def listed(self, items: Sequence[Any]) -> str:
        """The items as part of a sentence."""
        return listed([self.word(item) for item in items], self.none, self.most_listed)

    def sentences(self, effect: Effect, names: Mapping[str, str], *, skip: bool) -> str:
        """Feedback on the message of the last turn.

        Args:
            names: those in the wording's sentences.
            skip: illegal items are skipped, so none of them stops the others.
        """
        if not effect.readable:
            unread = self.unread.format_map(names)
            return f"{names['whose']} message last turn couldn't be read as {self.items}{unread}."
        if not effect.written:
            return self.nothing.format_map(names)
        name = self.item if effect.written == 1 else self.items
        who, start = names["who"], self.start.format_map(names)
        stopped = self.stopped if effect.illegal and not skip else ""
        limit = self.limit(effect) if self.reasons else ""
        return " ".join(filter(None, [
            f"Last turn {who[0].lower() + who[1:]} {self.verb} {effect.legal} of {effect.written} "
            f"{name}{start}.",
            self.refusals(effect.items, effect.illegal),
            *((limit, stopped) if self.limit_first else (stopped, limit)),
            self.end.format_map(names),
        ]))  # fmt: skip

    def limit(self, effect: Effect) -> str:
        """The sentence on a message with more items than are played; empty for one within the limit."""
        if effect.written <= len(effect.items):
            return ""
        return f"Only the first {len(effect.items)} {self.items} of a message are played."

    def refusals(
        self,
        items: Sequence[Any],
        illegal: Sequence[tuple[int, str]],
        sentence: str = "{Item} {number} ({word}) {reason}.",
    ) -> str:
        """A sentence for each of the first refused items, and one for the rest."""
        if not self.reasons:
            return ""
        sentences = [
            sentence.format(
                Item=self.item.capitalize(),
                item=self.item,
                number=number,
                word=self.word(items[number - 1]),
                reason=self.reasons[reason],
            )
            for number, reason in illegal[: self.most_refused]
        ]
        more = len(illegal) - len(sentences)
        return " ".join([*sentences, f"So it is with {more} more."] if more else sentences)
