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
from typing import Any, NamedTuple

from pydantic import Field

from coterie.core.errors import ConfigError
from coterie.core.plugins import PluginConfig
from coterie.core.types import Action, Message
from coterie.discovery.members import Brief
from coterie.plugins.rewards.coach.disarm import between_boundaries, disarmed

TEMPLATES = Path(__file__).parent / "templates"
"""Ours: `action.md` and `trajectory.md`."""


class Characters(PluginConfig):
    """Most characters of each part, and of the reason; null: all of it."""

    team: int | None = Field(None, ge=1)
    instruction: int | None = Field(None, ge=1)
    seen: int | None = Field(None, ge=1)
    wrote: int | None = Field(None, ge=1)
    tool_output: int | None = Field(None, ge=1, description="Its end is shown: tracebacks are there.")
    files: int | None = Field(None, ge=1)
    outcome: int | None = Field(None, ge=1)
    answer: int | None = Field(None, ge=1)
    reason: int = Field(2_000, ge=1, description="Of the coach's reason, as it is stored and shown.")


@dataclass(frozen=True, slots=True)
class ShownAction:
    """One action, as a coach is shown it."""

    role: str
    turn: int
    messages: Sequence[Message]
    """The prompt of the action."""
    action: Action
    guidance: str = ""
    """What the coach is to look at in this role's work."""
    output: str = ""
    """What came of the action's program, where the environment ran it."""
    files: str = ""
    outcome: str = ""


class ShownTask(NamedTuple):
    """What is the same for all actions of a prompt."""

    team: str
    answer: str | None
    """The reference answer; None: it is not shown."""
    outcome: str = ""
    """Of the episode, where one prompt has all its actions."""


def shortened(text: str, most: int | None, *, end: bool = False) -> str:
    """A text of at most `most` characters (None: any number), and how many were left out.

    Args:
        end: keep the end alone; otherwise both ends.
    """
    if most is None or len(text) <= most:
        return text
    cut = len(text) - most
    note = f"[{cut} characters left out]"
    if end:
        return f"{note}\n{text[cut:]}"
    head = (most + 1) // 2
    return f"{text[:head]}\n{note}\n{text[head + cut :]}"


def part(name: str, text: str) -> str:
    """A text between its marks; shortened before it is disarmed, so that no cut makes a mark."""
    return f"<{name}>\n{disarmed(text)}\n</{name}>"


def team_text(order: Sequence[Sequence[str]], brief: Brief | None, guidance: Mapping[str, str]) -> str:
    """The team and its task: who acts when, each role's duty, limits and required files, the given files.

    Args:
        order: the roles of each stage.
        guidance: by role, what the coach is to look at; shown here where one call scores several roles.
    """
    brief = brief or Brief()
    lines = ["order: " + ", then ".join(" and ".join(stage) for stage in order)]
    for role in (role for stage in order for role in stage):
        known = {
            "duty": brief.duties.get(role, ""),
            "limits": brief.limits.get(role, ""),
            "required files": ", ".join(brief.required.get(role, ())),
            "guidance": guidance.get(role, ""),
        }
        lines += [f"{role}, {name}: {text}" for name, text in known.items() if text]
    if brief.available:
        lines += ["available files:", *brief.available]
    if brief.problem:
        lines += ["problem:", brief.problem]
    return "\n".join(lines)


def action_parts(shown: ShownAction, most: Characters) -> list[str]:
    """The parts of one action, without those of the task."""
    instruction = _contents([message for message in shown.messages if message["role"] == "system"])
    seen = _contents([message for message in shown.messages if message["role"] != "system"])
    tools = "\n".join([*shown.action.tool_results, *([shown.output] if shown.output else [])])
    parts = [part("role", f"{shown.role}, turn {shown.turn + 1}")]
    if shown.guidance:
        parts.append(part("guidance", shown.guidance))
    if instruction:
        parts.append(part("instruction", shortened(instruction, most.instruction)))
    parts.append(part("seen", shortened(seen, most.seen)))  # where it is empty too: nothing was handed over
    parts.append(part("wrote", shortened(shown.action.text, most.wrote)))
    if tools:
        parts.append(part("tool_output", shortened(tools, most.tool_output, end=True)))
    if shown.files:
        parts.append(part("files", shortened(shown.files, most.files)))
    if shown.outcome:
        parts.append(part("outcome", shortened(shown.outcome, most.outcome)))
    return parts


def action_text(shown: ShownAction, task: ShownTask, most: Characters) -> str:
    """The parts of the task and of one action, and the reference answer where it is shown."""
    return between_boundaries([_team(task, most), *action_parts(shown, most), *_answer(task, most)])


def trajectory_text(actions: Sequence[ShownAction], task: ShownTask, most: Characters) -> str:
    """The parts of the task and of every action, numbered from 1; outcome and answer where they are shown."""
    parts = [_team(task, most)]
    for number, shown in enumerate(actions, 1):
        first, *others = action_parts(shown, most)
        *others, last = [f'<action n="{number}">\n{first}', *others]
        parts += [*others, f"{last}\n</action>"]
    if task.outcome:
        parts.append(part("outcome", shortened(task.outcome, most.outcome)))
    return between_boundaries(parts + _answer(task, most))


def _team(task: ShownTask, most: Characters) -> str:
    return part("team", shortened(task.team, most.team))


def _answer(task: ShownTask, most: Characters) -> list[str]:
    return [] if task.answer is None else [part("answer", shortened(task.answer, most.answer))]


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
