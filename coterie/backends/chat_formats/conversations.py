"""What a chat template can't show, and the conversation that it is given instead.

Templates of some families refuse system messages, results of tools, or two messages of the user in a row
(Gemma, Mistral, Llama 2), and others leave them out without an error. `limits_of` renders short conversations
to see which, and `fitted` moves those texts into turns of the user: no text of a conversation is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from coterie.core.types import Message

log = logging.getLogger("coterie")

Write = Callable[[Sequence[Mapping[str, Any]]], str]
"""Renders a conversation as it is given."""

PROBE = "coterieprobe"
"""A text that no template contains."""
_SECOND = "coteriesecond"
BETWEEN = "\n\n"
"""Between texts that become one turn."""

CHANGES = {
    "system": "the system message begins the first message of the user",
    "later_system": "a later system message becomes text of the user, and is left out where it repeats "
    "the first one",
    "tool": "a tool's result becomes a message of the user",
    "repeats": "messages of the user that follow each other become one",
}
"""What is done where a template has a limit, by its name in `TemplateLimits`."""


class TemplateLimits(NamedTuple):
    """What a template writes; False: it refuses it, or leaves the text out."""

    system: bool = True
    """A system message that comes first."""
    later_system: bool = True
    """A system message behind an answer."""
    tool: bool = True
    """Results of tools."""
    repeats: bool = True
    """Two messages of the user in a row."""
    texts: bool = True
    """Contents as texts; else as lists of parts, `[{"type": "text", "text": ...}]`."""


def limits_of(write: Write) -> TemplateLimits:
    """The limits of a template.

    Raises:
        ValueError: it leaves out what the user writes.
    """
    user, answer = _message("user", "?"), _message("assistant", "?")
    probes = {
        "system": [_message("system", PROBE), user],
        "later_system": [_message("system", "?"), user, answer, _message("system", PROBE), user],
        "tool": [user, answer, _message("tool", PROBE)],
        "repeats": [_message("user", PROBE), _message("user", _SECOND)],
    }
    texts = _shows(write, [_message("user", PROBE)])
    if texts is False and _shows(write, as_parts([_message("user", PROBE)])):
        write, texts = _of_parts(write), True
        return limits_of(write)._replace(texts=False)
    if texts is False:
        raise ValueError("a conversation of one message of the user is rendered without its text")
    shown = {name: _shows(write, probe) for name, probe in probes.items()}
    # A template that renders nothing at all has no limits here: its error is the conversation's.
    return (
        TemplateLimits(**{name: bool(value) for name, value in shown.items()}) if texts else TemplateLimits()
    )


def fitted(messages: Sequence[Message], limits: TemplateLimits) -> tuple[list[Message], set[str]]:
    """The conversation as a template of these limits takes it, and the names of what was changed."""
    changed: set[str] = set()
    turns: list[Message] = []
    first = messages[0] if messages and messages[0]["role"] == "system" else None
    joins = False  # whether the last turn takes the next message of the user
    for index, message in enumerate(messages):
        limit = {"system": "later_system" if index else "system", "tool": "tool"}.get(message["role"], "")
        moved = bool(limit) and not getattr(limits, limit)
        if moved:
            changed.add(limit)
            if limit == "later_system" and first is not None and message["content"] == first["content"]:
                continue
            message = {**message, "role": "user"}
        follows = bool(turns) and turns[-1]["role"] == message["role"] == "user"
        if follows and (moved or joins or not limits.repeats):
            if not (moved or joins):
                changed.add("repeats")
            message = {**message, "content": turns.pop()["content"] + BETWEEN + message["content"]}
        joins = moved
        turns.append(message)
    return turns, changed


def as_parts(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with lists of parts, as templates of models that see images take them."""
    return [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]


@cache
def say_once(template: str, text: str) -> None:
    """Log a warning about a template, once in a process."""
    log.warning("the chat template %s (told once)", text)


def _of_parts(write: Write) -> Write:
    return lambda messages: write(as_parts(messages))


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _shows(write: Write, messages: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether the rendered conversation has the probes' texts; None: it is refused."""
    try:
        text = write(messages)
    except Exception:  # templates fail in many ways; a conversation's failure is told where it is rendered
        return None
    wanted = [PROBE] + [_SECOND] * any(_SECOND in str(message["content"]) for message in messages)
    return all(each in text for each in wanted)
