"""The chat formats: the tokenizer's chat template, or plain text.

Templates of some families refuse system messages, results of tools, or two messages of the user in a row
(Gemma, Mistral, Llama 2), and others leave them out without an error. `limits_of` renders short conversations
to see which, and `fitted` moves those texts into turns of the user: no text of a conversation is lost.
"""

from __future__ import annotations

import copy
import datetime
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from pydantic import Field

from coterie.backends.chat_formats.codec import Render, TextCodec, is_blind
from coterie.backends.models.loading import END_IDS
from coterie.backends.models.wordcodec import MARKERS, pieces
from coterie.core.errors import ConfigError, UserError
from coterie.core.plugins import Plugin, PluginConfig
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
        return limits_of(lambda messages: write(as_parts(messages)))._replace(texts=False)
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


DATE = datetime.date(2025, 1, 1)
"""What `strftime_now` gives, if the configuration names no date."""


def _failures() -> tuple[type[Exception], ...]:
    """What a template raises for a conversation. Jinja comes with transformers; plain text needs neither."""
    from jinja2 import TemplateError

    return (TemplateError, TypeError, ValueError, LookupError, AttributeError)


_MESSAGE_ENDS = ("<|eom_id|>",)
"""Tokens that end an answer which calls a tool; templates never write them."""
_ENDLESS = (
    "writes no token that ends an answer, and the tokenizer has no eos token: every answer goes on to "
    "max_new_tokens"
)
_UNOPENED = (
    "ignores add_generation_prompt: prompts end without the marks that begin an answer, and the model has to "
    "write them; fix `chat_template` in the model's folder"
)


class PlainChat(Plugin):
    """Plain text: an opening user message unchanged, later messages with markers such as `User:`.

    If the tokenizer has no ids for the markers (`tokenizer: words`), messages are lines without markers.
    """

    def codec(self, tokenizer: Any, context: int | None) -> TextCodec:
        return plain_codec(tokenizer, context)


class TemplateChat(Plugin):
    """The tokenizer's chat template."""

    class Config(PluginConfig):
        date: datetime.date = Field(
            DATE, description="The date in prompts of templates that ask for today's (`strftime_now`)."
        )
        template_kwargs: dict[str, Any] = Field(
            default_factory=dict, description="Passed to the template, e.g. {enable_thinking: false}."
        )

    config: Config

    def codec(self, tokenizer: Any, context: int | None) -> TextCodec:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                "`chat: template` needs a tokenizer with a chat template, and this one has none",
                path="chat.type",
                why=f"it is a {type(tokenizer).__name__} of {len(tokenizer)} tokens",
                fix="use `chat: auto` or `chat: plain`, or an instruction-tuned model",
            )
        return template_codec(tokenizer, context, self.config.template_kwargs, self.config.date)


class AutoChat(Plugin):
    """The tokenizer's chat template if it has one, else plain text."""

    def codec(self, tokenizer: Any, context: int | None) -> TextCodec:
        if getattr(tokenizer, "chat_template", None):
            return template_codec(tokenizer, context, {})
        return plain_codec(tokenizer, context)


def plain_codec(tokenizer: Any, context: int | None) -> TextCodec:
    """A codec for `coterie.backends.models.wordcodec`'s format."""
    end = tokenizer.eos_token_id
    stops = frozenset() if end is None else frozenset((end,))
    return TextCodec(
        tokenizer, context, PlainRender(tokenizer), stops | frozenset(_other_ends(tokenizer)), end
    )


def template_codec(
    tokenizer: Any, context: int | None, template_kwargs: Mapping[str, Any], date: datetime.date = DATE
) -> TextCodec:
    """A codec for the tokenizer's chat template.

    Raises:
        ConfigError: the template leaves out the texts of messages.
    """
    render = TemplateRender(tokenizer, template_kwargs, date)
    end = _end_of_turn(tokenizer, render)
    stops = ({end, tokenizer.eos_token_id} | _other_ends(tokenizer)) - {None}
    if not stops:
        say_once(render.template, _ENDLESS)
    if render.opening_is_missing():
        say_once(render.template, _UNOPENED)
    return TextCodec(
        tokenizer, context, render, frozenset(stops), tokenizer.eos_token_id if end is None else end
    )


class PlainRender(Render):
    """Renders conversations as plain text for one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._eos = tokenizer.eos_token or ""
        self._blind = is_blind(tokenizer)
        ids = tokenizer.encode(" ".join(MARKERS.values()), add_special_tokens=False)
        self._markers = tokenizer.unk_token_id is None or tokenizer.unk_token_id not in ids
        # Some models expect every text to start with a special token.
        opening = tokenizer.encode("", add_special_tokens=True)[:1]
        self._bos = tokenizer.bos_token if opening and opening[0] == tokenizer.bos_token_id else ""

    def __call__(self, messages: Sequence[Message]) -> str:
        parts = [self._bos] if self._bos else []
        for text, ends in pieces(messages, markers=self._markers):
            parts.append(text)
            if ends:
                parts.append(self._eos)
        return (" " if self._blind else "").join(part for part in parts if part)


class TemplateRender(Render):
    """Renders conversations with the tokenizer's chat template.

    The template gets each answer's text as it was sampled, with thoughts and tool calls in the text. From
    calls as objects, a template would render text with other spaces than the model's, and the prompt would no
    longer extend the sampled ids. What the template can't show becomes text of the user (`fitted`).

    Args:
        template_kwargs: variables of the template.
        date: of `strftime_now`.
    """

    def __init__(
        self, tokenizer: Any, template_kwargs: Mapping[str, Any], date: datetime.date = DATE
    ) -> None:
        self._tokenizer, self._kwargs = tokenizer, dict(template_kwargs)
        self.template = str(tokenizer.chat_template)
        if "strftime_now" in self.template:
            self._kwargs["strftime_now"] = partial(_dated, self.template, date)
        try:
            self.limits = limits_of(self._write)
        except ValueError as error:
            raise ConfigError(
                "the tokenizer's chat template leaves out the text of messages",
                path="chat",
                why=str(error),
                fix="use `chat: plain`, or fix `chat_template` in the model's folder",
            ) from None

    def with_tools(self, schemas: Sequence[Mapping[str, Any]]) -> TemplateRender | None:
        """The same renderer with tools; None if the template ignores tools."""
        with_tools = copy.copy(self)
        with_tools._kwargs = {**self._kwargs, "tools": [dict(schema) for schema in schemas]}
        probe: list[Message] = [{"role": "user", "content": PROBE}]
        return with_tools if with_tools.quietly(probe) != self.quietly(probe) else None

    def __call__(self, messages: Sequence[Message]) -> str:
        for name in sorted(fitted(messages, self.limits)[1]):
            say_once(self.template, f"has no place for some messages: {CHANGES[name]}")
        return self.quietly(messages)

    def quietly(self, messages: Sequence[Message], *, ask: bool = True) -> str:
        """The text of a conversation, made up to learn of the template: the log says nothing of it."""
        turns, _ = fitted(messages, self.limits)
        shown = turns if self.limits.texts else as_parts(turns)
        try:
            return self._write(shown, ask=ask)
        except _failures() as error:
            roles = ", ".join(message["role"] for message in messages)
            raise UserError(
                f"the tokenizer's chat template rejects a conversation of [{roles}]",
                path="chat",
                why=str(error),
                fix="change what the role renders, or use `chat: plain`",
            ) from error

    def _write(self, messages: Sequence[Mapping[str, Any]], *, ask: bool = True) -> str:
        return self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tokenize=False,
            add_generation_prompt=ask,
            **self._kwargs,
        )

    def opening_is_missing(self) -> bool:
        """Whether a prompt ends before the marks of an answer, since the template never writes them there."""
        question: list[Message] = [{"role": "user", "content": "?"}]
        try:
            prompt, unasked = self.quietly(question), self.quietly(question, ask=False)
            whole = self.quietly([*question, {"role": "assistant", "content": PROBE}], ask=False)
        except UserError:
            return False
        marks, _, _ = whole.removeprefix(prompt).partition(PROBE)
        return prompt == unasked and whole.startswith(prompt) and bool(marks.strip())


def _dated(template: str, date: datetime.date, form: str) -> str:
    """A fixed date where a template asks for today's, so that a run that is resumed has the same prompts."""
    say_once(
        template,
        f"writes the date: every prompt has {date.isoformat()}, so that runs repeat. Another one: "
        "chat={type: template, date: YYYY-MM-DD}",
    )
    return date.strftime(form)


def _end_of_turn(tokenizer: Any, render: TemplateRender) -> int | None:
    """The special token that the template puts after an answer, e.g. that of `<|im_end|>`."""
    probe: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": PROBE}]
    try:
        text = render.quietly(probe, ask=False)
    except UserError:
        return None
    _, separator, tail = text.rpartition(PROBE)
    ids = tokenizer.encode(tail.lstrip(" "), add_special_tokens=False) if separator else []
    return ids[0] if ids and ids[0] in _special_ids(tokenizer) else None


def _special_ids(tokenizer: Any) -> set[int]:
    return set(tokenizer.all_special_ids) | {
        index for index, token in tokenizer.added_tokens_decoder.items() if token.special
    }


def _other_ends(tokenizer: Any) -> set[int]:
    """Special tokens that end an answer in plain transformers, and that of a message with a tool call."""
    special = _special_ids(tokenizer)
    ends = special & set(getattr(tokenizer, END_IDS, ()))
    known = {tokenizer.decode([index]): index for index in special}
    return ends | {known[name] for name in _MESSAGE_ENDS if name in known}
