"""The protocol of kind `chat_format`: messages to token ids and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from coterie.core.types import Call, Message, Prompt


@runtime_checkable
class Codec(Protocol):
    """Encodes and decodes text for one policy."""

    def encode(
        self,
        messages: Sequence[Message],
        previous: Call | None = None,
        previous_messages: Sequence[Message] = (),
    ) -> Prompt:
        """The prompt of the messages, with the generation prompt at its end.

        The ids of `previous` are reused verbatim where the messages extend `previous_messages` and its text.
        """

    def decode(self, call: Call) -> str:
        """The text of a call, without its stop token."""

    def encode_completion(self, text: str) -> tuple[int, ...]:
        """Token ids of an answer, its stop token included, for supervised training."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""

    @property
    def context(self) -> int | None:
        """Longest prompt plus completion, in tokens; None: no limit is known."""


@runtime_checkable
class DescribesTools(Protocol):
    def with_tools(self, schemas: Sequence[Mapping[str, Any]]) -> Codec | None:
        """A codec whose prompts describe these tools; None: the format doesn't support tools."""


@runtime_checkable
class ChatFormat(Protocol):
    """Formats messages as text for a tokenizer."""

    def codec(self, tokenizer: Any, context: int | None) -> Codec:
        """The codec of a tokenizer; `context` is the model's limit in tokens."""
