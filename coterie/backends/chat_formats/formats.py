"""The chat formats: the tokenizer's chat template, or plain text."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import Field

from coterie.backends.chat_formats.codec import Render, TextCodec, is_blind
from coterie.backends.chat_formats.conversations import CHANGES, PROBE, as_parts, fitted, limits_of, say_once
from coterie.backends.models import plain_format
from coterie.backends.models.end_tokens import END_IDS
from coterie.core.errors import ConfigError, UserError
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.types import Message

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
    """A codec for `coterie.backends.models.plain_format`'s format."""
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
        ids = tokenizer.encode(" ".join(plain_format.MARKERS.values()), add_special_tokens=False)
        self._markers = tokenizer.unk_token_id is None or tokenizer.unk_token_id not in ids
        # Some models expect every text to start with a special token.
        opening = tokenizer.encode("", add_special_tokens=True)[:1]
        self._bos = tokenizer.bos_token if opening and opening[0] == tokenizer.bos_token_id else ""

    def __call__(self, messages: Sequence[Message]) -> str:
        parts = [self._bos] if self._bos else []
        for text, ends in plain_format.pieces(messages, markers=self._markers):
            parts.append(text)
            if ends:
                parts.append(self._eos)
        return (" " if self._blind else "").join(part for part in parts if part)


class TemplateRender(Render):
    """Renders conversations with the tokenizer's chat template.

    The template gets each answer's text as it was sampled, with thoughts and tool calls in the text. From
    calls as objects, a template would render text with other spaces than the model's, and the prompt would no
    longer extend the sampled ids. What the template can't show becomes text of the user (`conversations`).

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
