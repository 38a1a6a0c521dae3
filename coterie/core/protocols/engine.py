"""The protocol of kind `engine`: token generation."""

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
    """Generates tokens for all policies."""

    async def open(self, ctx: EngineContext) -> None: ...

    async def generate(self, request: Request) -> Call:
        """Generate one call.

        Raises:
            SystemFault: the engine failed, e.g. its server is unreachable.
        """

    async def load_weights(self, weights: Weights) -> None:
        """Use these weights for all later requests of their policy."""

    def codec(self, policy: str) -> Codec: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """Input of `Engine.open`."""

    policies: Mapping[str, PolicyConfig]
    chat: ChatFormat
    active_rollouts: ActiveRollouts
    """Count of the active rollouts. An in-process engine starts a batch when all of them wait."""
    deterministic: bool
    vocabulary: tuple[str, ...]
    """Words that the environment and the roles use, for `tokenizer: words`."""
