"""Tool calls in a reply: parsers of a fenced block and of the model's native call, and the base of tools that
take one text.

Both parsers accept any text and take time linear in its length, so a reply can't stall the run.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from coterie.core.plugins import Plugin

OPEN, CLOSE = "<tool_call>", "</tool_call>"
# Possessive quantifiers never backtrack, so no line is read more than once.
_FENCE = re.compile(r" {0,3}(`{3,}+)[ \t]*+([\w+-]*+)[ \t]*+$")
_MARK = re.compile(f"{OPEN}|{CLOSE}")
_SPACE = re.compile(r"\s*")
_BROKEN = 100
"""Calls that are no JSON, behind which no more are looked through for its end: this bounds the time."""
_NAME = re.compile(r'"name"\s{0,9}:\s{0,9}"([^"]{0,200})"')


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One native call."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    """Why the call can't be run; empty: it can."""


def fenced(text: str, languages: Sequence[str]) -> str | None:
    """The last closed block of one of these languages; None if there is none.

    A block ends at a line with at least as many backticks as its opening line. An unclosed block doesn't
    count: half a program is never run.
    """
    block: str | None = None
    fence, language, lines = "", "", list[str]()
    for line in text.split("\n"):
        match = _FENCE.match(line.rstrip("\r"))
        if not fence:
            if match is not None:
                fence, language, lines = match[1], match[2].lower(), []
        elif match is not None and not match[2] and len(match[1]) >= len(fence):
            if language in languages:
                block = "".join(line + "\n" for line in lines)
            fence = ""
        else:
            lines.append(line)
    return block


def native(text: str, names: Sequence[str]) -> tuple[ToolUse, ...]:
    """The calls of these tools in `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, in order.

    This is the format of models whose chat templates follow Hermes: Qwen2.5, Qwen3 and others. An unclosed
    call is ignored. A call that is not JSON becomes a `ToolUse` with an error, for the tool that it names.
    The JSON of a call may hold the marks of one.
    """
    uses = []
    for inside in _calls(text):
        use = _use(inside)
        if use is not None and use.name in names:
            uses.append(use)
    return tuple(uses)


def _calls(text: str) -> Iterator[str]:
    """What is inside each closed call: JSON up to its end, and anything else up to the next mark."""
    at, broken = text.find(OPEN), 0
    while at >= 0:
        start = at + len(OPEN)
        end = _end_of_json(text, start) if broken < _BROKEN else None
        if end is None:
            mark, broken = _MARK.search(text, start), broken + 1
            end = mark.start() if mark is not None else len(text)
        if text.startswith(CLOSE, end):
            yield text[start:end]
        at = text.find(OPEN, end)


def _end_of_json(text: str, start: int) -> int | None:
    """Where the call that begins at `start` is closed, if all inside it is one JSON value."""
    try:
        _, end = json.JSONDecoder().raw_decode(text, _SPACE.match(text, start).end())  # type: ignore[union-attr]
    except (ValueError, RecursionError):
        return None
    end = _SPACE.match(text, end).end()  # type: ignore[union-attr]
    return end if text.startswith(CLOSE, end) else None


def _use(inside: str) -> ToolUse | None:
    try:
        table = json.loads(inside)
    except (ValueError, RecursionError) as error:
        name = _NAME.search(inside)
        return None if name is None else ToolUse(name[1], error=f"the call is no JSON: {error}")
    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        return None
    arguments = table.get("arguments", {})
    if isinstance(arguments, str):  # some templates render arguments as JSON inside JSON
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return ToolUse(table["name"], error="the arguments are no JSON object")
    if not isinstance(arguments, dict):
        return ToolUse(table["name"], error="the arguments are no JSON object")
    return ToolUse(table["name"], arguments)


def schema(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A tool's schema in the form that chat templates take."""
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


class TextTool(Plugin, ABC):
    """A tool that takes one text: the reply's last fenced block, or the argument of the model's native calls.

    Its settings `calls` and `announce` say which of the two, and whether the chat template gets the schema.
    """

    plain_name: ClassVar[str]
    """Its name where no configuration gives it one."""
    description: ClassVar[str]
    argument: ClassVar[str]
    argument_is: ClassVar[str]
    undone: ClassVar[str]
    """What the answer to a call that can't be run begins with."""

    @property
    def name(self) -> str:
        return str(self.build.name) if self.build is not None else self.plain_name

    @property
    def languages(self) -> tuple[str, ...]:
        """Of the fenced blocks that are calls."""
        return (self.name.lower(),)

    @property
    def schemas(self) -> tuple[dict[str, Any], ...]:
        """The tool's schema for the chat template; empty unless it is announced."""
        if self.config.calls == "fenced" or not self.config.announce:
            return ()
        properties = {self.argument: {"type": "string", "description": self.argument_is}}
        parameters = {"type": "object", "properties": properties, "required": [self.argument]}
        return (schema(self.name, self.description, parameters),)

    def find(self, text: str) -> str | tuple[ToolUse, ...] | None:
        """The text of the block, or the native calls."""
        if self.config.calls == "fenced":
            return fenced(text, self.languages)
        return native(text, (self.name,)) or None

    async def run(self, call: str | tuple[ToolUse, ...]) -> str:
        """The answers to the calls, for the model. Raises as `_answer`."""
        if isinstance(call, str):
            return await self._answer(call)
        return numbered([await self._used(use) for use in call])

    async def _used(self, use: ToolUse) -> str:
        value = use.arguments.get(self.argument)
        if use.error or not isinstance(value, str):
            return f"{self.undone}: {use.error or f'the call needs the argument {self.argument!r}, a string'}"
        return await self._answer(value)

    @abstractmethod
    async def _answer(self, text: str) -> str:
        """The answer to one call.

        Raises:
            SystemFault, PolicyFault: as of `Tool.run`.
        """


def numbered(results: Sequence[str]) -> str:
    """The results of the calls of one reply, as one message."""
    if len(results) == 1:
        return results[0]
    count = len(results)
    return "\n\n".join(f"result {index} of {count}:\n{text}" for index, text in enumerate(results, 1))


def ending(text: str, length: int) -> str:
    """The last `length` characters; a traceback's message is at its end."""
    if len(text) <= length:
        return text
    return f"[{len(text) - length} characters left out]\n{text[len(text) - length :]}"


def beginning(text: str, length: int) -> str:
    """The first `length` characters."""
    return text if len(text) <= length else f"{text[:length]}\n[{len(text) - length} characters left out]"
