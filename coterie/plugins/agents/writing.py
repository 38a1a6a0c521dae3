"""Roles of environment `writing`: first and second; solver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from coterie.core.errors import PolicyFault
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.types import Message, RoleInput
from coterie.plugins.agents.names import check_name
from coterie.plugins.envs.writing.state import SEPARATOR, WritingObservation, parts

_NAMES = {"tldr": "Post", "arxiv": "Abstract"}
_SHORT = "Summarise the post in a short paragraph: its main points, and nothing else."
_LONG = (
    "Summarise the post in a paragraph with details: about twice to three times as long as a short "
    "summary, with more "
    "varied words, and with transition words of many kinds."
)
_WHY = (
    "From the abstract, write the paragraph of an introduction that gives background and motivation, with "
    "transition "
    "words of many kinds."
)
_HOW = (
    "From the abstract, write the paragraph of an introduction that gives method, contribution and "
    "implications, with "
    "transition words of many kinds. It is somewhat longer than the paragraph on the background and has as "
    "many "
    "different words."
)
ASKED: Mapping[str, Mapping[str, str]] = {
    "tldr": {"first": _SHORT, "second": _LONG},
    "arxiv": {"first": _WHY, "second": _HOW},
}
"""By kind and role: what to write."""


class WritingRole(Plugin):
    """A role of environment `writing`. Its prompt: the source, the feedback, what to write."""

    class Config(PluginConfig):
        system: str | None = Field(None, description="System prompt; null: the built-in one; empty: none.")
        ask: str | None = Field(
            None, description="Last lines of the prompt: what to write; null: the built-in ones."
        )

    config: Config
    omits_task = True
    role: ClassVar[str] = ""
    """The name that the role must have in the team."""
    task: ClassVar[str] = (
        "You write one of two paragraphs on a source. Another writer writes the other at the same time, "
        "and you don't "
        "see it. The two must fit each other in length, words and style."
    )
    """The built-in system prompt."""

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        check_name(build, self.role, "writing")

    def render(self, role_input: RoleInput) -> Sequence[Message]:
        """A system message, where there is one, and a user message."""
        seen: WritingObservation = role_input.observation
        lines: list[str] = []
        if role_input.shows_task:
            lines += [f"Title: {seen.title}"] if seen.title else []
            lines += [f"{_NAMES[seen.kind]}:", seen.prompt.strip(), ""]
        lines += [*role_input.feedback, ""] if role_input.feedback else []
        lines.append(self.asked(seen) if self.config.ask is None else self.config.ask)
        system = self.task if self.config.system is None else self.config.system
        user: Message = {"role": "user", "content": "\n".join(lines)}
        return [{"role": "system", "content": system}, user] if system else [user]

    def parse(self, text: str, observation: Any) -> str:
        """The text.

        Raises:
            PolicyFault: it is empty.
        """
        if not text.strip():
            raise PolicyFault("the answer is empty")
        return text.strip()

    def asked(self, seen: WritingObservation) -> str:
        """The built-in last lines of the prompt."""
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
            f"{second} "
            f"{_words(seen)} Answer with the two paragraphs alone."
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
