"""The engine client of an engine in the same process."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Coroutine, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

from coterie.core.concurrency.active_rollouts import ActiveRollouts
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import Codec, Engine
from coterie.core.rollout.contracts import check_call, check_given
from coterie.core.types import Call, Request

T = TypeVar("T")

_COUNTED: ContextVar[bool] = ContextVar("counted", default=False)
"""Whether this coroutine belongs to an active rollout, which waits for it."""
STEP: ContextVar[int] = ContextVar("step", default=0)
"""The step in play that this coroutine belongs to; 0: none."""


@dataclass(slots=True)
class IdleTime:
    """How long an engine has had no request."""

    requests: int = 0
    since: float = field(default_factory=time.perf_counter)
    """When the last request ended."""
    seconds: float = 0.0

    def begin(self) -> None:
        if not self.requests:
            self.seconds += time.perf_counter() - self.since
        self.requests += 1

    def end(self) -> None:
        self.requests -= 1
        self.since = time.perf_counter()

    def take(self) -> float:
        """Seconds without a request since the last call of this method."""
        if not self.requests:
            self.begin()
            self.end()
        idle, self.seconds = self.seconds, 0.0
        return idle


@dataclass(frozen=True, slots=True)
class LocalEngineClient:
    """Passes requests to the engine, and counts the active rollouts beside it."""

    engine: Engine
    active_rollouts: ActiveRollouts = field(default_factory=ActiveRollouts)
    """For `EngineContext.active_rollouts`."""
    idle_time: IdleTime = field(default_factory=IdleTime)
    drawn: Counter[int] = field(default_factory=Counter)
    """Tokens of the calls that came back, by step in play."""

    def codec(self, policy: str) -> Codec:
        with plugin_call(self.engine, "codec"):
            return check_given(self.engine, "codec", self.engine.codec(policy), "Codec")

    async def generate(self, request: Request) -> Call:
        self.idle_time.begin()
        try:
            with plugin_call(self.engine, "generate"):
                call = check_call(self.engine, request, await self.engine.generate(request))
            self.drawn[STEP.get()] += len(call.token_ids)
            return call
        finally:
            self.idle_time.end()

    async def active(self, work: Awaitable[T]) -> T:
        if _COUNTED.get():  # counted with the rollout that waits for it: counted twice, no batch would begin
            return await work
        counted = _COUNTED.set(True)
        self.active_rollouts.start()
        try:
            return await work
        finally:
            self.active_rollouts.stop()
            _COUNTED.reset(counted)

    async def gather(self, work: Sequence[Awaitable[T]]) -> list[T]:
        return await self.active_rollouts.gather(work)


def not_counted(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start what a rollout does not wait for, such as scoring in the background."""
    context = copy_context()
    context.run(_COUNTED.set, False)
    return asyncio.get_running_loop().create_task(work, context=context)
