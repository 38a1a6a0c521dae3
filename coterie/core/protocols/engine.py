"""The protocol of kind `engine`: what generates tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from coterie.core.concurrency.request_batching import ActiveRollouts
from coterie.core.config import PolicyConfig
from coterie.core.protocols.chat_format import ChatFormat, Codec
from coterie.core.types import Call, Request, Weights


@runtime_checkable
class Engine(Protocol):
    """Generates tokens."""

    async def open(self, ctx: EngineContext) -> None: ...

    async def generate(self, request: Request) -> Call:
        """One call. Raises SystemFault when the engine, not the model, failed."""

    async def load_weights(self, weights: Weights) -> None:
        """From now on the policy's requests are answered with these weights."""

    def codec(self, policy: str) -> Codec: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """What an engine is opened with."""

    policies: Mapping[str, PolicyConfig]
    chat: ChatFormat
    active_rollouts: ActiveRollouts
    """Counts live strands of play: an in-process engine forms a batch when all of them wait."""
    deterministic: bool
    vocabulary: tuple[str, ...]
    """Words that the environment and the roles write; for `tokenizer: words`."""
