"""Roles of environment `writing`: first and second; solver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.core.errors import PolicyFault
from coterie.plugins.agents.roles import ProseRole
from coterie.plugins.envs.writing.state import SEPARATOR, WritingObservation, parts

_NAMES = {"tldr": "Post", "arxiv": "Abstract"}
_SHORT = "Summarise the post in a short paragraph: its main points, and nothing else."
_LONG = (
    "Summarise the post in a paragraph with details: about twice to three times as long as a short "
    "summary, with more varied words, and with transition words of many kinds."
)
_WHY = (
    "From the abstract, write the paragraph of an introduction that gives background and motivation, with "
    "transition words of many kinds."
)
_HOW = (
    "From the abstract, write the paragraph of an introduction that gives method, contribution and "
    "implications, with transition words of many kinds. It is somewhat longer than the paragraph on the "
    "background and has as many different words."
)
ASKED: Mapping[str, Mapping[str, str]] = {
    "tldr": {"first": _SHORT, "second": _LONG},
    "arxiv": {"first": _WHY, "second": _HOW},
}
"""By kind and role: what to write."""


class WritingRole(ProseRole):
    """A role of environment `writing`. Its prompt: the source, the feedback, what to write."""

    game = "writing"
    omits_task = True
    task = (
        "You write one of two paragraphs on a source. Another writer writes the other at the same time, "
        "and you don't see it. The two must fit each other in length, words and style."
    )

    def sections(self, seen: WritingObservation, shows_task: bool) -> Sequence[Sequence[str]]:
        title = [f"Title: {seen.title}"] if seen.title else []
        return [[*title, f"{_NAMES[seen.kind]}:", seen.prompt.strip()]] if shows_task else []

    def parse(self, text: str, observation: Any) -> str:
        """The text.

        Raises:
            PolicyFault: it is empty.
        """
        if not text.strip():
            raise PolicyFault("the answer is empty")
        return text.strip()

    def asked(self, seen: WritingObservation) -> str:
        return f"{ASKED[seen.kind][self.role]} {_words(seen)} Answer with the paragraph alone."


class WritingFirst(WritingRole):
    """Writes the first text: a short summary, or background and motivation."""

    role = "first"


class WritingSecond(WritingRole):
    """Writes the second text: a long summary, or method and implications."""

    role = "second"


class WritingSolver(WritingRole):
    """Writes both texts alone, with a line `---` between them."""

    role = "solver"
    task = "You write two paragraphs on a source. The two must fit each other in length, words and style."

    def asked(self, seen: WritingObservation) -> str:
        first, second = (ASKED[seen.kind][role] for role in ("first", "second"))
        return (
            f"Write two paragraphs, with a line {SEPARATOR} between them. The first: {first} The second: "
            f"{second} {_words(seen)} Answer with the two paragraphs alone."
        )

    def parse(self, text: str, observation: Any) -> str:
        """The two texts.

        Raises:
            PolicyFault: there are no two, with a line of the separator between them.
        """
        if not all(parts({"solver": text})):
            raise PolicyFault(f"the answer has no two texts with a line {SEPARATOR} between them")
        return text.strip()


def _words(seen: WritingObservation) -> str:
    return f"A paragraph has {seen.least} to {seen.most} words."
