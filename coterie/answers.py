"""What model-written programs answered in an episode, so that a replay of it needs no sandbox.

An environment that steps with results of programs calls `known_answer` before it asks, and `keep_answer`
afterwards. They travel with the episode's scores, and the rollout file of the step has them. Imports nothing
of Coterie.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

KEPT: ContextVar[dict[str, Any] | None] = ContextVar("kept_answers", default=None)
"""Where the answers of the episode go; None: nobody wants them."""
KNOWN: ContextVar[Mapping[str, Any]] = ContextVar("known_answers", default={})  # noqa: B039  # never changed
"""The recorded answers of the step that is replayed."""


def known_answer(question: str) -> Any | None:
    """The recorded answer to a question; None: there is none, so ask.

    Args:
        question: a digest of all that decides the answer.
    """
    return KNOWN.get().get(question)


def keep_answer(question: str, answer: Any) -> None:
    """Keep an answer: JSON. Call it where a remembered answer is used again, too."""
    kept = KEPT.get()
    if kept is not None:
        kept[question] = answer
