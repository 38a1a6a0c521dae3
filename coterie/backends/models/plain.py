"""How a conversation reads as plain text, for models without a chat template.

The format is append-only: what a later prompt shows of an earlier turn is exactly what stood there, so
a prompt can extend sampled ids verbatim (invariant 1). An opening user message stands bare, and so does
the answer to it; everything after has a marker:

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
    """Some text, and whether the end-of-turn token follows it."""

    text: str
    ends: bool


def pieces(messages: Sequence[Message], *, markers: bool = True, start: int = 0) -> list[Piece]:
    """The conversation, with the words that ask for the next answer at its end.

    Args:
        markers: False for vocabularies that have no word for them; turns are then lines.
        start: only what stands after the first `start` messages.
    """
    found: list[Piece] = []
    bare = bool(messages) and (messages[0]["role"] == "user" or not markers)
    for index, message in enumerate(messages[start:], start):
        role, content = message["role"], message["content"]
        if role == "assistant":
            found += [_call_for_answer(index == 1 and bare, markers), Piece(content, True)]
        elif index == 0:
            found.append(Piece(content if bare else f"{_marker(role)} {content}", False))
        else:
            found.append(Piece(f"\n{_marker(role)} {content}" if markers else f"\n{content}", False))
    found.append(_call_for_answer(len(messages) == 1 and bare, markers))
    return [piece for piece in found if piece.text or piece.ends]


def _call_for_answer(bare: bool, markers: bool) -> Piece:
    """What stands between a prompt and its answer."""
    return Piece("" if bare or not markers else f"\n{MARKERS['assistant']}", False)


def _marker(role: str) -> str:
    return MARKERS.get(role, f"{role.capitalize()}:")
