"""What roles write and observe in a check that no example describes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.core.protocols.tool import HasSchemas
from coterie.discovery.members import Demonstrates, HasVocabulary
from coterie.testing.checking.cases import Built
from coterie.testing.support.episodes import unreadable
from coterie.testing.support.opening import opened

NOISE = ("", "what?", "1", "no parser reads this")
"""Texts of which a parser reads few or none."""
_TASKS = 4
_WORDS = 12


def answers(
    game: Built, plugins: Mapping[str, Any], roles: Sequence[str], *, toy: bool = False
) -> tuple[list[Any], str]:
    """Answers of roles: those that the environment demonstrates, its words, and some that no parser reads.

    Without roles that read them, a text could be anything to the environment: then every action is one that
    its role's parser could not read, as in a run.

    Args:
        toy: whether the environment is the kit's, which reads any text.

    Returns:
        The answers, and what stays unchecked with them; empty: nothing.
    """
    if toy:
        return ["2", "stop", *NOISE], ""
    if not plugins:
        lacks = "steps with actions that were read: Example(act=[...]) with what a parser returns, or a "
        return [unreadable()], lacks + "recipe whose roles read the answers"
    try:
        env = game.make()
        texts = _demonstrated(env, roles)
        words = list(env.vocabulary())[:_WORDS] if isinstance(env, HasVocabulary) else []
    except Exception:  # told when the case is run
        texts, words = [], []
    understood = [*texts, *words, " ".join(words[:3])] if words else texts
    lacks = "" if understood else "steps with answers that it understands: Example(act=[...])"
    return list(dict.fromkeys([*understood, *NOISE])), lacks


def observations(game: Built, role: str) -> tuple[list[Any], list[str]]:
    """What a role observes at the start of a task, and a demonstrated answer; none where that fails."""

    async def first() -> tuple[list[Any], list[str]]:
        env = game.make()
        async with opened(env):
            tasks = env.tasks("train", 0)
            seen = [env.observe(env.reset(tasks[0], 0), role)]
        return seen, _demonstrated(env, [role], tasks=1)  # an answer to this observation

    try:
        return asyncio.run(first())
    except Exception:  # an environment that can't be made, or doesn't know the role
        return [], []


def _demonstrated(env: Any, roles: Sequence[str], tasks: int = _TASKS) -> list[str]:
    """What the environment's oracle writes at the start of a few tasks."""
    if not isinstance(env, Demonstrates):
        return []
    all_tasks, texts = env.tasks("train", 0), list[str]()  # type: ignore[attr-defined]
    for index in range(min(tasks, len(all_tasks))):
        state = env.reset(all_tasks[index], index)  # type: ignore[attr-defined]
        for role in roles:
            try:
                texts.append(env.demonstrate(state, role, 0.0, np.random.default_rng(index)))
            except Exception:  # a role that doesn't act yet
                continue
    return list(dict.fromkeys(text for text in texts if isinstance(text, str)))


def calls_of(tool: Built) -> list[str]:
    """Replies that call a tool, made of its name and schemas; none where it finds no call in them."""
    try:
        made: Any = tool.make()
        find, name = made.find, made.name
        texts = [f"```{name}\n1 + 1\n```"]
        for schema in made.schemas if isinstance(made, HasSchemas) else ():
            function = schema["function"]
            call = {"name": function["name"], "arguments": _arguments(function.get("parameters") or {})}
            texts.append(f"<tool_call>\n{json.dumps(call)}\n</tool_call>")
        return [text for text in texts if find(text) is not None]
    except Exception:  # told when the case is run
        return []


_VALUES: dict[str, Any] = {
    "string": "a text", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}, "null": None
}  # fmt: skip


def _arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Values for the properties that a JSON schema requires."""
    properties = schema.get("properties") or {}
    values = {}
    for name in schema.get("required", properties):
        of_name = properties.get(name) or {}
        values[name] = of_name["enum"][0] if of_name.get("enum") else _VALUES.get(str(of_name.get("type")))
    return values
