"""The protocol of kind `chat_format`: how messages become token ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from coterie.core.types import Call, Message, Prompt


@runtime_checkable
class Codec(Protocol):
    """Text to ids and back for one policy."""

    def encode(
        self,
        messages: Sequence[Message],
        previous: Call | None = None,
        previous_messages: Sequence[Message] = (),
    ) -> Prompt:
        """Prompt ids, with the generation prompt. With `previous`, its ids are reused verbatim where
        the messages extend `previous_messages` plus its decoded text; else a fresh prompt."""

    def decode(self, call: Call) -> str:
        """The text of a call, without its stop token."""

    def encode_completion(self, text: str) -> tuple[int, ...]:
        """Ids of an answer, its stop token included: for supervised steps."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""

    @property
    def context(self) -> int | None:
        """Longest prompt plus completion, in tokens."""

    # Optional: with_tools(schemas) -> Codec | None, one whose prompts tell the model of these tools;
    # vocabulary: {token: id}, by which a policy from elsewhere is known to speak the same tokens.


@runtime_checkable
class ChatFormat(Protocol):
    """How messages become text for a tokenizer."""

    def codec(self, tokenizer: Any, context: int | None) -> Codec: ...
