"""The engine client of an engine in the same process."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from coterie.core.concurrency.active_rollouts import ActiveRollouts
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import Codec, Engine
from coterie.core.types import Call, Request

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LocalEngineClient:
    """Passes requests to the engine, and counts the active rollouts beside it."""

    engine: Engine
    active_rollouts: ActiveRollouts = field(default_factory=ActiveRollouts)
    """For `EngineContext.active_rollouts`."""

    def codec(self, policy: str) -> Codec:
        with plugin_call(self.engine, "codec"):
            return self.engine.codec(policy)

    async def generate(self, request: Request) -> Call:
        with plugin_call(self.engine, "generate"):
            return await self.engine.generate(request)

    async def active(self, work: Awaitable[T]) -> T:
        self.active_rollouts.start()
        try:
            return await work
        finally:
            self.active_rollouts.stop()

    async def gather(self, work: Sequence[Awaitable[T]]) -> list[T]:
        return await self.active_rollouts.gather(work)
