"""The chat formats: the tokenizer's chat template, or plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from coterie.backends.chat_formats.codec import Render, TextCodec, is_blind
from coterie.backends.models import plain_format
from coterie.core.errors import ConfigError, UserError
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.types import Message

_PROBE = "coterieprobe"
"""An answer that no template contains; the text after it ends a turn."""


class PlainChat(Plugin):
    """Plain text: an opening user message unchanged, later messages with markers such as `User:`.

    If the tokenizer has no ids for the markers (`tokenizer: words`), messages are lines without markers.
    """

    def codec(self, tokenizer: Any, context: int | None) -> TextCodec:
        return plain_codec(tokenizer, context)


class TemplateChat(Plugin):
    """The tokenizer's chat template."""

    class Config(PluginConfig):
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
        return template_codec(tokenizer, context, self.config.template_kwargs)


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
    return TextCodec(tokenizer, context, PlainRender(tokenizer), stops, end)


def template_codec(tokenizer: Any, context: int | None, template_kwargs: dict[str, Any]) -> TextCodec:
    """A codec for the tokenizer's chat template."""
    render = TemplateRender(tokenizer, template_kwargs)
    end = _end_of_turn(tokenizer, render)
    stops = {end, tokenizer.eos_token_id} - {None}
    return TextCodec(
        tokenizer, context, render, frozenset(stops), tokenizer.eos_token_id if end is None else end
    )


class PlainRender:
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


class TemplateRender:
    """Renders conversations with the tokenizer's chat template.

    The template gets each answer's text as it was sampled, with thoughts and tool calls in the text. From
    calls as objects, a template would render text with other spaces than the model's, and the prompt would no
    longer extend the sampled ids.
    """

    def __init__(self, tokenizer: Any, template_kwargs: dict[str, Any]) -> None:
        self._tokenizer, self._kwargs = tokenizer, template_kwargs

    def with_tools(self, schemas: Sequence[Mapping[str, Any]]) -> TemplateRender | None:
        """The same renderer with tools; None if the template ignores tools."""
        tools = [dict(schema) for schema in schemas]
        with_tools = TemplateRender(self._tokenizer, {**self._kwargs, "tools": tools})
        probe: list[Message] = [{"role": "user", "content": _PROBE}]
        return with_tools if with_tools(probe) != self(probe) else None

    def __call__(self, messages: Sequence[Message], *, ask: bool = True) -> str:
        from jinja2 import TemplateError

        try:
            return self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=ask,
                **self._kwargs,
            )
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise UserError(
                f"the tokenizer's chat template rejects a conversation of [{roles}]",
                path="chat",
                why=str(error),
                fix="change what the role renders, or use `chat: plain`",
            ) from error


def _end_of_turn(tokenizer: Any, render: Render) -> int | None:
    """The special token that the template puts after an answer, e.g. that of `<|im_end|>`."""
    probe: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PROBE}]
    try:
        text = render(probe, ask=False)  # type: ignore[call-arg]
    except UserError:
        return None
    _, separator, tail = text.rpartition(_PROBE)
    ids = tokenizer.encode(tail, add_special_tokens=False) if separator else []
    special = set(tokenizer.all_special_ids) | {
        index for index, token in tokenizer.added_tokens_decoder.items() if token.special
    }
    return ids[0] if ids and ids[0] in special else None
