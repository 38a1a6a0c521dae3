"""What an expert is asked, and what it answers: an edit for each role's answer, in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from coterie.core.rollout.thoughts import split
from coterie.core.types import Message

_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*)\n```", re.S)


@runtime_checkable
class GivesLatestAnswers(Protocol):
    """An environment whose states hold what every role wrote last."""

    def latest(self, state: Any) -> Mapping[str, str]:
        """The latest answer of every role that has acted, by role, as the model wrote it."""


class MalformedEdits(ValueError):
    """An answer that holds no edits; the message says what is wrong with it."""


def schema_of(roles: Sequence[str]) -> dict[str, Any]:
    """The JSON schema of an answer: a text for each role."""
    return {
        "type": "object",
        "properties": {role: {"type": "string"} for role in roles},
        "required": list(roles),
        "additionalProperties": False,
    }


def question(task: Sequence[Message], role: str, answers: Mapping[str, str]) -> str:
    """The expert's prompt.

    Args:
        task: messages of a role's first prompt of the episode.
        role: the role.
        answers: the latest answers, by role.
    """
    form = json.dumps(dict.fromkeys(answers, "..."), ensure_ascii=False)
    shown = "\n\n".join(message["content"] for message in task)
    written = [f'<answer role="{name}">\n{text}\n</answer>' for name, text in answers.items()]
    return "\n\n".join(
        (
            "You are an expert. You review what language models wrote for a task, one answer a role, and "
            "propose an edit of each answer. Each role reads its edit and writes its answer once more.",
            f"The task, as role '{role}' was given it:",
            f"<task>\n{shown}\n</task>",
            "The latest answers:",
            *written,
            "Write an edit for each role: the lines to change, or a whole answer in place of a wrong or "
            "missing one, in the form that the task asks for. Where nothing has to change, say so in a line.",
            f"Answer with one JSON object and nothing else, with a text in each field: {form}",
        )
    )


def read_edits(text: str, roles: Sequence[str]) -> dict[str, str]:
    """The edits by role; a role whose field is missing, blank or no text has none.

    Raises:
        MalformedEdits: the text holds no JSON object, or one with none of the fields.
    """
    table = _object(split(text).text.strip())
    if not any(role in table for role in roles):
        raise MalformedEdits(f"the JSON has none of the fields {', '.join(roles)}")
    edits = {role: table[role] for role in roles if isinstance(table.get(role), str)}
    return {role: edit for role, edit in edits.items() if edit.strip()}


def _object(text: str) -> dict[str, Any]:
    """The JSON object that a text is, or holds between other words or in a fence."""
    fenced = _FENCE.search(text)
    inner = text[text.find("{") : text.rfind("}") + 1]
    # The fence last: texts of the object may hold one.
    for candidate in (text, inner, *((fenced[1],) if fenced else ())):
        try:
            # Models write line ends into strings as they are.
            table = json.loads(candidate, strict=False, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            if isinstance(error, MalformedEdits):
                raise
            continue
        if not isinstance(table, dict):
            raise MalformedEdits("the JSON is no object")
        return table
    raise MalformedEdits("it is no JSON")


def _once(items: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(items)
    if len(table) < len(items):
        raise MalformedEdits("a key of the JSON stands twice")
    return table
