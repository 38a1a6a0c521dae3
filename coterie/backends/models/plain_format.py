"""The plain-text format of conversations, for models without a chat template.

The format is append-only: later prompts repeat the text of an earlier turn exactly, so a prompt can extend
sampled ids verbatim (invariant 1). An opening user message and its answer have no markers; every other
message has one:

    What is 2 + 2? 4<eos>          System: Be brief.
    User: And 3 + 3?               User: What is 2 + 2?
    Assistant:                     Assistant:
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from coterie.core.types import Message

MARKERS: dict[str, str] = {"system": "System:", "user": "User:", "assistant": "Assistant:", "tool": "Tool:"}


class Piece(NamedTuple):
    """A text, and whether the end-of-turn token follows it."""

    text: str
    ends: bool


def pieces(messages: Sequence[Message], *, markers: bool = True, start: int = 0) -> list[Piece]:
    """The conversation's text, which ends with the marker of the next answer.

    Args:
        markers: False for vocabularies without the markers' words; turns are then lines.
        start: the first message to write; earlier messages are left out.
    """
    written: list[Piece] = []
    bare = bool(messages) and (messages[0]["role"] == "user" or not markers)
    for index, message in enumerate(messages[start:], start):
        role, content = message["role"], message["content"]
        if role == "assistant":
            written += [_call_for_answer(index == 1 and bare, markers), Piece(content, True)]
        elif index == 0:
            written.append(Piece(content if bare else f"{_marker(role)} {content}", False))
        else:
            written.append(Piece(f"\n{_marker(role)} {content}" if markers else f"\n{content}", False))
    written.append(_call_for_answer(len(messages) == 1 and bare, markers))
    return [piece for piece in written if piece.text or piece.ends]


def _call_for_answer(bare: bool, markers: bool) -> Piece:
    """The text between a prompt and its answer."""
    return Piece("" if bare or not markers else f"\n{MARKERS['assistant']}", False)


def _marker(role: str) -> str:
    return MARKERS.get(role, f"{role.capitalize()}:")
