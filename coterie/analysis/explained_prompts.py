"""The prompts of a sample episode, each with what comes from where: contents, tools, and the chat format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

from coterie.analysis.prompt_origins import (
    BEGIN,
    END,
    InputChange,
    Kind,
    PromptPart,
    attribute,
    changes_of,
    common_ends,
    setting_change,
)
from coterie.analysis.sample_episode import SamplePrompt
from coterie.compose.builder import ComponentBuilder
from coterie.compose.tables import TEAM_KEYS
from coterie.core.config import RunConfig
from coterie.core.plugins.origin import origin_of
from coterie.core.protocols import Codec
from coterie.core.protocols.reward import ShowsFeedback
from coterie.core.rollout.side import LocalRolloutSide
from coterie.core.types import Message, RoleInput
from coterie.discovery import plugins


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedMessage:
    """A message of a prompt: the texts of its parts, joined, are its content."""

    role: str
    parts: list[PromptPart]

    @property
    def content(self) -> str:
        return "".join(part.text for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedPrompt:
    """A prompt of a role in the sample episode."""

    role: str
    policy: str
    """Empty: the role is silent."""
    turn: int
    """From 0."""
    messages: list[ExplainedMessage]
    text: list[PromptPart]
    """The whole prompt as the model reads it; empty where no text is known: see `Explanation.missing`."""
    tokens: int | None
    decides: list[str]
    """Inputs that decide its form and are not shown in it."""

    @property
    def characters(self) -> int:
        return sum(len(message.content) for message in self.messages)


def explain_prompts(
    samples: Sequence[SamplePrompt],
    config: RunConfig,
    side: LocalRolloutSide,
    codecs: Mapping[str, Codec],
    chat: Any,
) -> list[ExplainedPrompt]:
    """Prompts with their parts."""
    return [_Explained(sample, config, side).prompt(codecs, chat) for sample in samples]


class _Explained:
    """One prompt."""

    def __init__(self, sample: SamplePrompt, config: RunConfig, side: LocalRolloutSide) -> None:
        self._sample, self._config, self._side = sample, config, side
        self._role = side.team.members[sample.role].role
        self._path = f"team.roles.{sample.role}"

    def prompt(self, codecs: Mapping[str, Codec], chat: Any) -> ExplainedPrompt:
        sample, request = self._sample, self._sample.request
        rendered = list(self._role.render(sample.role_input))
        earlier = request.messages[: len(request.messages) - len(rendered)]
        writers: dict[Kind, str] = {
            "role": str(origin_of(self._role)),
            "observation": str(origin_of(self._side.environment)),
            "history": f"role '{sample.role}'",
        }
        attribution = attribute(rendered, self._changes(), writers)
        messages = [_earlier(message, sample.role) for message in earlier]
        messages += [ExplainedMessage(role=role, parts=parts) for role, parts in attribution.messages]
        known = sample.codec if request.policy in codecs else None
        text: list[PromptPart] = []
        if hasattr(known, "prompt_text"):
            text = self._text(known, codecs[request.policy], messages, chat)
        return ExplainedPrompt(
            role=sample.role,
            policy=request.policy,
            turn=sample.turn,
            messages=messages,
            text=text,
            tokens=len(request.prompt.ids) if text else None,
            decides=attribution.decides,
        )

    # -------------------------------------------------------------------------------------------- contents

    def _changes(self) -> list[InputChange]:
        """What to change of the input, and of the role's settings."""
        sample, team = self._sample, self._side.team
        sources = [s for s in self._side.reward_sources if isinstance(s.plugin, ShowsFeedback)]
        comments = ", ".join(str(origin_of(source.plugin)) for source in sources)
        feedback = sample.role_input.feedback
        wrote: list[tuple[Kind, str]] = [("feedback", str(origin_of(team.transition)))] * sample.sentences
        wrote += [("comment", comments)] * (len(feedback) - sample.sentences)
        changes = changes_of(self._role.render, sample.role_input, wrote)
        return [*changes, *self._settings(sample.role_input)]

    def _settings(self, role_input: RoleInput) -> Iterator[InputChange]:
        """The changes of the role's settings that hold text: the role is made again with another one."""
        table = self._config.team.roles[self._sample.role]
        settings = {key: value for key, value in table.items() if key not in TEAM_KEYS}
        model = plugins().registry.config_of("role", str(settings["type"]))
        made: dict[tuple[str, str], Any] = {}
        writer = str(origin_of(self._role))

        def rendered(key: str, text: str) -> Sequence[Message]:
            if (key, text) not in made:
                builder = ComponentBuilder(self._config, self._side.environment)
                changed = {**settings, key: text}
                made[key, text] = builder.make("role", changed, self._path, self._sample.role, TEAM_KEYS)
            messages: Sequence[Message] = made[key, text].render(role_input)
            return messages

        for name, info in model.model_fields.items() if model is not None else ():
            key = info.alias or name
            if str not in (info.annotation, *get_args(info.annotation)):
                continue
            value = settings.get(key, None if info.is_required() else info.default)
            if value is None or isinstance(value, str):
                yield setting_change(partial(rendered, key), f"{self._path}.{key}", value, writer)

    def _text(
        self, codec: Any, plain: Any, messages: Sequence[ExplainedMessage], chat: Any
    ) -> list[PromptPart]:
        """The whole prompt, with the writers of the format and of what it says of tools."""
        tools = self._side.team.members[self._sample.role].tools
        writers = ", ".join(str(origin_of(tool)) for tool in tools)
        template = getattr(getattr(codec, "render", None), "template", "")
        names = ("the tokenizer's chat template",) if template else ()
        format_part = PromptPart("", "format", names, str(origin_of(chat)))
        tool_part = PromptPart("", "tools", tuple(tool.name for tool in tools), writers)
        return whole_prompt(messages, codec, plain, format_part, tool_part)


def whole_prompt(
    messages: Sequence[ExplainedMessage],
    codec: Any,
    plain: Any,
    format_part: PromptPart,
    tool_part: PromptPart,
) -> list[PromptPart]:
    """A prompt as the model reads it: contents at their places, and what the format writes between them.

    Args:
        codec: one with `prompt_text`, which shows the text that it encodes.
        plain: the codec without the role's tools; `codec` itself where it has none.
        format_part, tool_part: what the text of the format, and what it says of tools, come from.

    Returns:
        Parts whose texts, joined, are `codec.prompt_text` of the messages.
    """
    bare: list[Message] = [{"role": each.role, "content": each.content} for each in messages]
    whole = codec.prompt_text(bare)
    tools = _tool_span(codec, plain, bare, whole)
    parts: list[PromptPart] = []
    at = 0
    for index, (start, stop) in [*_placed(codec, bare, whole), (-1, (len(whole), len(whole)))]:
        begin, end = (min(max(edge, at), start) for edge in tools)
        parts += [
            replace(format_part, text=whole[at:begin]),
            replace(tool_part, text=whole[begin:end]),
            replace(format_part, text=whole[end:start]),
        ]
        parts += _cut(messages[index].parts, whole[start:stop]) if index >= 0 else []
        at = stop
    return [part for part in parts if part.text]


def _earlier(message: Message, role: str) -> ExplainedMessage:
    """A message before the rendered ones: an earlier prompt of a role that remembers, or its answer."""
    kind: Kind = "answer" if message["role"] == "assistant" else "earlier"
    part = PromptPart(message["content"], kind, (), f"role '{role}', which remembers")
    return ExplainedMessage(role=message["role"], parts=[part])


_CONTENT = re.compile(f"{BEGIN}(.)(.*?){END}", re.DOTALL)
_FIRST = 0xE100
"""Character after the mark that begins the first message's content; a later message's has a later one."""


def _placed(codec: Any, bare: Sequence[Message], whole: str) -> list[tuple[int, tuple[int, int]]]:
    """(message, (begin, end)) of the contents in the whole text, in the order in which they stand there: a
    template may trim a content, and move a system message."""
    for trim in (str, str.strip):
        marked = [
            {**message, "content": f"{BEGIN}{chr(_FIRST + index)}{trim(message['content'])}{END}"}
            for index, message in enumerate(bare)
        ]
        try:
            text = codec.prompt_text(marked)
        except Exception:  # a template looks into what it is given
            continue
        matches = list(_CONTENT.finditer(text))
        if _CONTENT.sub(r"\2", text) == whole and len(matches) == len(bare):
            starts = [match.start() - 3 * number for number, match in enumerate(matches)]
            return [
                (ord(match[1]) - _FIRST, (start, start + len(match[2])))
                for start, match in zip(starts, matches, strict=True)
            ]
    placed, at = [], 0
    for index, message in enumerate(bare):
        content = message["content"].strip()
        start = whole.find(content, at) if content else -1
        if start >= 0:
            at = start + len(content)
            placed.append((index, (start, at)))
    return placed


def _cut(parts: Sequence[PromptPart], text: str) -> list[PromptPart]:
    """The parts of a content as the format wrote it, without the space around it."""
    content = "".join(part.text for part in parts)
    start = content.find(text)
    if start < 0:  # the format changed it inside
        return [replace(parts[0], text=text)] if parts else []
    kept, at = [], 0
    for part in parts:
        piece = part.text[max(0, start - at) : max(0, start + len(text) - at)]
        at += len(part.text)
        if piece:
            kept.append(replace(part, text=piece))
    return kept


def _tool_span(codec: Any, plain: Any, bare: Sequence[Message], whole: str) -> tuple[int, int]:
    """(begin, end) of what a format writes of tools: what it leaves out without them."""
    if codec is plain or not hasattr(plain, "prompt_text"):
        return 0, 0
    head, tail = common_ends(whole, plain.prompt_text(bare))
    return head, len(whole) - tail
