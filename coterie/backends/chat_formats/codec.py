"""Conversion of messages to token ids and back; sampled ids are never encoded again (invariant 1)."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.backends.models.lru import Lru
from coterie.core.errors import UserError
from coterie.core.rollout.thoughts import CLOSE, OPEN
from coterie.core.types import Call, Message, Prompt

_CACHED = 4096


class Render(ABC):
    """Renders a conversation as the text of a prompt, which ends with the opening of the next answer."""

    @abstractmethod
    def __call__(self, messages: Sequence[Message]) -> str: ...

    def quietly(self, messages: Sequence[Message]) -> str:
        """The text of a conversation that is made up: the log says nothing of it."""
        return self(messages)

    def with_tools(self, schemas: Sequence[Mapping[str, Any]]) -> Render | None:
        """The same format with these tools in every prompt; None: it has no place for them."""
        return None


class TextCodec:
    """Encodes conversations with one tokenizer and one format.

    A prompt extends a previous call only where that is *proven*: the ids of the previous prompt are the text
    of `previous_messages`, and the new text starts with that text and the raw decoded completion. Then the
    ids are reused and only the rest is encoded. In all other cases (a template that drops earlier thoughts, a
    trimmed text, a special token in the middle) the whole prompt is encoded again, with `continues=False`.

    No message's content becomes a control token, which only the format writes: `<|im_end|>` in it is encoded
    as the text `< |im_end|>`. Otherwise what one role writes could end the turn that shows it to another, or
    to a judge, and go on as the system.

    Args:
        tokenizer: a Hugging Face tokenizer.
        context: longest prompt plus completion, in tokens.
        render: renders conversations as text.
        stop_ids: tokens that end a turn.
        end: the stop id that is appended to demonstrated answers; None: none.
    """

    def __init__(
        self, tokenizer: Any, context: int | None, render: Render, stop_ids: frozenset[int], end: int | None
    ) -> None:
        self.tokenizer = tokenizer
        self.context = context
        self.stop_ids = stop_ids
        self.render = render
        self._end = end
        self._blind = is_blind(tokenizer)
        self._control = _control_tokens(tokenizer, render)
        self._texts: Lru[tuple[tuple[tuple[str, str], ...], ...], str] = Lru(_CACHED)
        self._ids: Lru[str, tuple[int, ...]] = Lru(_CACHED)
        self._text_of_ids: Lru[tuple[int, ...], str] = Lru(_CACHED)
        self._tool_codecs: dict[str, TextCodec | None] = {}

    def with_tools(self, schemas: Sequence[Mapping[str, Any]]) -> TextCodec | None:
        """The codec whose prompts contain these tools' schemas; None if the format doesn't support tools.

        Args:
            schemas: JSON schemas as chat templates take them: `{"type": "function", "function": {"name",
                "description", "parameters"}}`.
        """
        key = json.dumps(schemas, sort_keys=True)
        if key not in self._tool_codecs:
            render = self.render.with_tools(schemas)
            codec = None
            if render is not None:
                codec = TextCodec(self.tokenizer, self.context, render, self.stop_ids, self._end)
                # The schemas explain `<tool_call>`, which a role's own earlier answers have to keep.
                codec._control = self._control
            self._tool_codecs[key] = codec
        return self._tool_codecs[key]

    @property
    def vocabulary(self) -> Mapping[str, int]:
        """Every token and its id. Policies can replace each other only if their vocabularies are equal."""
        return self.tokenizer.get_vocab()

    def encode(
        self,
        messages: Sequence[Message],
        previous: Call | None = None,
        previous_messages: Sequence[Message] = (),
    ) -> Prompt:
        """The ids of a prompt; they extend the ids of `previous` where that is proven to be exact."""
        if previous is not None:
            played = len(previous_messages)
            text = self._text(messages, played, self.decode(previous))
            ids = self._extended(text, previous, self._text(previous_messages, played))
            if ids is not None:
                self._text_of_ids.put(ids, text)
                return Prompt(ids=ids, continues=True, thinking=opens_thought(text))
        text = self._text(messages)
        ids = self._encoded(text)
        self._text_of_ids.put(ids, text)
        return Prompt(ids=ids, thinking=opens_thought(text))

    def decode(self, call: Call) -> str:
        """The text of a call, without its stop token and without special tokens."""
        ids = call.token_ids[:-1] if call.finish == "stop" else call.token_ids
        return self._decoded(ids, skip_special_tokens=True)

    def prompt_text(self, messages: Sequence[Message]) -> str:
        """The text of a prompt, with the marks of the format, as `encode` encodes it."""
        return self._text(messages)

    def encode_completion(self, text: str) -> tuple[int, ...]:
        """The ids of a demonstrated answer and the token that ends a turn."""
        return self._encoded(text) + (() if self._end is None else (self._end,))

    def _text(self, messages: Sequence[Message], played: int = 0, sampled: str = "") -> str:
        """The text of a conversation, in which no content is a control token.

        Args:
            played: first messages whose answers stay as they are: their sampled ids are kept, in which what
                looks like a control token is none.
            sampled: what was sampled of the message behind them.
        """
        if self._control is not None:
            kept = [self._text_behind(message, sampled) for message in messages[played : played + 1]]
            kept = [m if m["role"] == "assistant" else self._as_text(m) for m in messages[:played]] + kept
            messages = kept + [self._as_text(message) for message in messages[played + 1 :]]
        key = tuple(tuple(message.items()) for message in messages)
        return self._texts.of(key, lambda: self.render(messages))

    def _text_behind(self, message: Message, sampled: str) -> Message:
        """The message of an answer: what was sampled stays as it is, and the rest of it is text."""
        content = message["content"]
        if message["role"] == "assistant" and content in sampled:
            return message
        if message["role"] != "assistant" or not sampled or not content.startswith(sampled):
            return self._as_text(message)
        rest = self._as_text({"role": "assistant", "content": content[len(sampled) :]})
        return {**message, "content": sampled + rest["content"]}

    def _as_text(self, message: Message) -> Message:
        """The message, with a space inside each control token of its content."""
        assert self._control is not None
        content = message["content"]
        while self._control.search(content):  # the rest of a token may be the begin of another
            content = self._control.sub(lambda match: f"{match[0][0]} {match[0][1:]}", content)
        return {**message, "content": content}

    def _encoded(self, text: str) -> tuple[int, ...]:
        return self._ids.of(text, lambda: tuple(self.tokenizer.encode(text, add_special_tokens=False)))

    def _decoded(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self.tokenizer.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )

    def _extended(self, text: str, previous: Call, before: str) -> tuple[int, ...] | None:
        """The previous call's ids and those of the rest of `text`; None if the extension isn't proven."""
        if not previous.token_ids or not self._is_text_of(previous.prompt_ids, before):
            return None
        rest = self._after(text, before, self._in_context(previous.prompt_ids, previous.token_ids))
        if rest is None and previous.finish == "stop" and previous.token_ids[-1] not in self.stop_ids:
            # The call stopped on a token of `sampling.stop`, which is not part of the answer's text. The new
            # text must then contain the answer without it, and the ids keep the sampled stop token.
            rest = self._after(text, before, self._in_context(previous.prompt_ids, previous.token_ids[:-1]))
        if rest is None:
            return None
        added = self._encoded(rest)
        # Some tokenizers add a space at the start of a text; the rest is not the start of one.
        if not self._blind and not self._in_context(previous.token_ids, added).startswith(rest[:1]):
            return None
        return previous.prompt_ids + previous.token_ids + added

    def _is_text_of(self, ids: tuple[int, ...], text: str) -> bool:
        known = self._text_of_ids.get(ids)  # set by `encode`, for continued prompts too
        if known is None:
            known = text if self._encoded(text) == ids else self._decoded(ids)
        return known == text or (self._blind and known.split() == text.split())

    def _in_context(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """The text that `ids` add after `before`. Some decoders drop the first space of ids decoded alone."""
        anchor = self._decoded(before[-1:])
        joined = self._decoded((*before[-1:], *ids))
        return joined[len(anchor) :] if joined.startswith(anchor) else self._decoded(ids)

    def _after(self, text: str, before: str, raw: str) -> str | None:
        if not self._blind:
            start = before + raw
            return text[len(start) :] if text.startswith(start) else None
        words, start_words = text.split(), before.split() + raw.split()
        if words[: len(start_words)] != start_words:
            return None
        return " ".join(words[len(start_words) :])


def _control_tokens(tokenizer: Any, render: Render) -> re.Pattern[str] | None:
    """The tokens that a content must not become: the special ones, and others that the format writes.

    DeepSeek's `<\uff5cUser\uff5c>` is an added token that is not special, for one. The marks of a thought are
    not among them: prompts explain them, and they end no turn.
    """
    added = tokenizer.added_tokens_decoder
    written = set(tokenizer.encode(_conversation(render), add_special_tokens=False))
    special = {index for index, token in added.items() if token.special or index in written}
    texts = {
        tokenizer.decode([index], clean_up_tokenization_spaces=False)
        for index in special | set(tokenizer.all_special_ids)
    }
    texts = {text for text in texts if len(text) > 1 and not text.isspace()} - {OPEN, CLOSE}
    longest_first = sorted(texts, key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, longest_first))) if texts else None


def _conversation(render: Render) -> str:
    """The text of a short conversation, with a system message where the format takes one."""
    messages: list[Message] = [
        {"role": role, "content": "?"} for role in ("system", "user", "assistant", "user")
    ]
    for shown in (messages, messages[1:], messages[1:2]):
        try:
            return render.quietly(shown)
        except UserError:
            continue
    return ""


def opens_thought(prompt: str) -> bool:
    """Whether a prompt ends inside a thought, so that the completion goes on thinking."""
    return prompt.rstrip().endswith(OPEN)


def is_blind(tokenizer: Any) -> bool:
    """Whether the tokenizer ignores white space between words; texts are then compared word by word."""
    return not tokenizer.encode(" \n ", add_special_tokens=False)
