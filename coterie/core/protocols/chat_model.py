"""The protocol of kind `chat_model`: models that are asked in messages and answer in text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from coterie.core.protocols.engine import EngineClient
from coterie.core.types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """Input of `ChatModel.answer`."""

    messages: tuple[Message, ...]
    max_tokens: int = 1024
    temperature: float = 0.0
    sample: int = 0
    """Equal requests with another number are further samples; at temperature 0 it has no effect."""
    schema: Mapping[str, Any] | None = None
    """JSON schema of the answer, for a model with `structured`; others answer in plain text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """Output of `ChatModel.answer`."""

    text: str
    version: str = ""
    """The version of the model that answered, where the provider names it."""
    finish: str = "stop"
    """`length` where `max_tokens` cut the text."""


@runtime_checkable
class ChatModel(Protocol):
    """A model that a coach, a judge or a transition mode asks: a provider's, a frozen policy, or rules."""

    structured: bool
    """Whether its answers follow `ChatRequest.schema`."""

    async def answer(self, request: ChatRequest) -> ChatAnswer:
        """The answer to a request.

        Raises:
            SystemFault: no answer, or one that its provider withheld: what depends on it is missing.
            UserError: no request can be answered (a wrong key, a spent budget): the run stops.
        """


@runtime_checkable
class UsesEngine(Protocol):
    def use_engine(self, engine: EngineClient) -> None:
        """Take the run's engine, to generate with one of its policies; called before `open`."""
