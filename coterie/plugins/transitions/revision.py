"""Modes that show a role its earlier answer and ask it to revise it: their base, and `plain`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field, ValidationInfo, model_validator

from coterie.core.errors import ConfigError
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.rollout.contracts import FEEDBACK_CHARACTERS
from coterie.core.types import HistoryEntry

OFFLINE = ("plain", "passed", "level_passed", "level_feedback")
"""The modes with a revision that ask no expert."""
WITH_TESTS = OFFLINE[1:]
"""Those that run the task's tests, or read the environment's diagnosis."""
PREVIOUS = "Your previous answer"
REVISE = "Revise your answer. Write all of it again, in the same form."


class RevisionConfig(PluginConfig):
    original_prompt: bool = Field(True, description="The prompts of later turns state the task again.")

    @model_validator(mode="before")
    @classmethod
    def _runs_tests(cls, values: Any, info: ValidationInfo) -> Any:
        """Refuse `sandbox_slice` with the reason, where the mode runs no tests."""
        given = isinstance(values, Mapping) and "sandbox_slice" in values
        if given and "sandbox_slice" not in cls.model_fields:
            raise ConfigError(
                "unknown key 'sandbox_slice'",
                path=".".join(filter(None, ((info.context or {}).get("path", ""), "sandbox_slice"))),
                why="this mode runs no tests",
                fix=f"remove it, or choose a mode that runs some: {', '.join(WITH_TESTS)}",
            )
        return values


class Revision(Plugin):
    """Tells a role its earlier answer as the model wrote it, what a subclass remarks on it, and to revise it.

    Source: the external transition modes of MAGRPO (arXiv 2508.04652). What differs: the answer is not parsed
    and written anew, and no name of a function is in the sentences, so that a mode serves any environment.
    """

    Config: type[PluginConfig] = RevisionConfig
    words: tuple[str, ...] = ()
    """Texts that a subclass's remarks consist of, for `vocabulary`."""

    def __init__(self, config: Any, build: Any) -> None:
        super().__init__(config, build)
        self.original_prompt: bool = self.config.original_prompt

    async def tell(
        self, role: str, state: Any, history: Sequence[HistoryEntry], environment: Any
    ) -> Sequence[str]:
        """The earlier answer in texts of at most 4,000 characters, the remarks, and the request to revise.

        Raises:
            SystemFault: the environment could not say what came of the answer.
        """
        if not history:
            return ()
        remarks = await self.remarks(role, state, history, environment)
        return (*self.answers(history), *remarks, REVISE)

    def answers(self, history: Sequence[HistoryEntry]) -> list[str]:
        """The latest answer under its title."""
        return titled(PREVIOUS, history[-1].action.text)

    async def remarks(
        self, role: str, state: Any, history: Sequence[HistoryEntry], environment: Any
    ) -> Sequence[str]:
        """The sentences between the answer and the request to revise it: none."""
        return ()

    def vocabulary(self) -> Iterable[str]:
        """The words of the mode's own sentences, for `tokenizer: words`."""
        texts = (f"{PREVIOUS}:", f"{PREVIOUS} was empty.", REVISE, *self.words)
        return sorted({word for text in texts for word in text.split()})


class Plain(Revision):
    """Tells each role its earlier answer and to revise it; no tests are run."""


def titled(title: str, answer: str) -> list[str]:
    """A title, then the answer in texts that the core doesn't cut: joined by line ends they are it."""
    if not answer.strip():
        return [f"{title} was empty."]
    return [f"{title}:", *_parts(answer)]


def _parts(text: str) -> list[str]:
    """The text, split at line ends into parts of at most FEEDBACK_CHARACTERS, none of them blank.

    A longer line stays whole, and the core cuts it with a mark: a line end in it was not written.
    """
    if len(text) <= FEEDBACK_CHARACTERS:
        return [text]
    parts: list[str] = []
    current: str | None = None
    for line in text.split("\n"):
        longer = line if current is None else f"{current}\n{line}"
        if current is not None and current.strip() and len(longer) > FEEDBACK_CHARACTERS:
            parts.append(current)
            longer = line
        current = longer
    assert current is not None
    return [*parts, current] if current.strip() else [*parts[:-1], f"{parts[-1]}\n{current}"]
