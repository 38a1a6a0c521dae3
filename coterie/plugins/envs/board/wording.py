"""What prompts and feedback of the grid games say of the items of a message, and how these are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.plugins.envs.board.effects import Effect
from coterie.plugins.envs.board.parsing import as_list, label, listed, read_words
from coterie.plugins.envs.common.teams import Rendering


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
