"""What a coach is shown: the marked parts of an action, in a template.

A part holds text that a policy wrote, and a policy is paid by the score. So no text can leave its part: lines
that it can't know stand between the parts, and the marks of the prompt and of the answer are disarmed in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from pydantic import Field

from coterie.core.errors import ConfigError
from coterie.core.plugins import PluginConfig
from coterie.core.types import Action, Message
from coterie.plugins.rewards.coach.disarm import between_boundaries, disarmed

TEMPLATES = Path(__file__).parent / "templates"
"""Ours: `action.md` and `trajectory.md`."""


class Characters(PluginConfig):
    """Most characters of each part, and of the reason."""

    instruction: int = Field(4_000, ge=1)
    seen: int = Field(16_000, ge=1)
    wrote: int = Field(16_000, ge=1)
    tool_output: int = Field(4_000, ge=1, description="Its end is shown: tracebacks are there.")
    files: int = Field(4_000, ge=1)
    answer: int = Field(4_000, ge=1)
    reason: int = Field(2_000, ge=1, description="Of the coach's reason, as it is stored and shown.")


@dataclass(frozen=True, slots=True)
class ShownAction:
    """One action, as a coach is shown it."""

    role: str
    turn: int
    messages: Sequence[Message]
    """The prompt of the action."""
    action: Action
    files: str = ""


def shortened(text: str, most: int, *, end: bool = False) -> str:
    """A text of at most `most` characters, and how many were left out.

    Args:
        end: keep the end alone; otherwise both ends.
    """
    cut = len(text) - most
    if cut <= 0:
        return text
    note = f"[{cut} characters left out]"
    if end:
        return f"{note}\n{text[cut:]}"
    head = (most + 1) // 2
    return f"{text[:head]}\n{note}\n{text[head + cut :]}"


def part(name: str, text: str) -> str:
    """A text between its marks; shortened before it is disarmed, so that no cut makes a mark."""
    return f"<{name}>\n{disarmed(text)}\n</{name}>"


def action_parts(shown: ShownAction, most: Characters) -> list[str]:
    """The parts of one action, without the answer."""
    instruction = _contents([message for message in shown.messages if message["role"] == "system"])
    seen = _contents([message for message in shown.messages if message["role"] != "system"])
    tools = "\n".join(shown.action.tool_results)
    parts = [part("role", f"{shown.role}, turn {shown.turn + 1}")]
    if instruction:
        parts.append(part("instruction", shortened(instruction, most.instruction)))
    parts.append(part("seen", shortened(seen, most.seen)))  # where it is empty too: nothing was handed over
    parts.append(part("wrote", shortened(shown.action.text, most.wrote)))
    if tools:
        parts.append(part("tool_output", shortened(tools, most.tool_output, end=True)))
    if shown.files:
        parts.append(part("files", shortened(shown.files, most.files)))
    return parts


def action_text(shown: ShownAction, answer: str | None, most: Characters) -> str:
    """The parts of one action, and the reference answer where it is shown."""
    return between_boundaries(action_parts(shown, most) + _answer(answer, most))


def trajectory_text(actions: Sequence[ShownAction], answer: str | None, most: Characters) -> str:
    """The parts of every action, numbered from 1, and the reference answer where it is shown."""
    parts: list[str] = []
    for number, shown in enumerate(actions, 1):
        first, *others = action_parts(shown, most)
        *others, last = [f'<action n="{number}">\n{first}', *others]
        parts += [*others, f"{last}\n</action>"]
    return between_boundaries(parts + _answer(answer, most))


def _answer(answer: str | None, most: Characters) -> list[str]:
    return [] if answer is None else [part("answer", shortened(answer, most.answer))]


def _contents(messages: Sequence[Message]) -> str:
    """The texts of messages; where there are several, each with the role of the chat."""
    if len(messages) == 1:
        return str(messages[0]["content"])
    return "\n".join(f"[{message['role']}]\n{message['content']}" for message in messages)


def files_text(*holders: Any) -> str:
    """The file trail of an observation or a state: the first that has `files`, one line a file.

    `files` is a text, a list of lines, or a mapping from names to what is known of each.
    """
    for holder in holders:
        files = holder.get("files") if isinstance(holder, Mapping) else getattr(holder, "files", None)
        if isinstance(files, str) and files:
            return files
        if isinstance(files, Mapping) and files:
            return "\n".join(f"{name}: {known}" for name, known in files.items())
        if isinstance(files, (list, tuple)) and files:
            return "\n".join(map(str, files))
    return ""


def reference(answer: Any) -> str | None:
    """A task's reference answer as text; None where it has none."""
    if answer is None or isinstance(answer, str):
        return answer
    return json.dumps(answer, ensure_ascii=False, default=str, sort_keys=True)


def load_template(mode: str, path: str | None, where: str) -> Template:
    """Our template of a mode, or the user's.

    Args:
        where: dotted path of the setting, for errors.

    Raises:
        ConfigError: the file can't be read, or has not exactly the placeholders `$format` and `$parts`.
    """
    file = TEMPLATES / f"{mode}.md" if path is None else Path(path)
    try:
        template = Template(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the prompt file {file} can't be read", path=where, why=str(error)) from None
    fix = "write $format where the form of the answer stands, $parts where the action stands, and $$ for a $"
    if not template.is_valid():
        raise ConfigError(f"the prompt file {file} has a $ that names nothing", path=where, fix=fix)
    names = set(template.get_identifiers())
    for name in sorted(names ^ {"format", "parts"}):
        lacks = "lacks" if name in ("format", "parts") else "has the unknown placeholder"
        raise ConfigError(f"the prompt file {file} {lacks} ${name}", path=where, fix=fix)
    return template
