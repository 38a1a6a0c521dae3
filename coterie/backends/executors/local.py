"""Executor `local`: episodes are coroutines of this process."""

from __future__ import annotations

import asyncio
from typing import Annotated

from pydantic import Field

from coterie.core.plugins import MayChange, Plugin, PluginConfig
from coterie.core.protocols import ExecutorContext, Rollout, RolloutJob, RolloutSide


class LocalExecutor(Plugin):
    """Plays jobs concurrently on the rollout side of this process, at most `max_live` at a time."""

    class Config(PluginConfig):
        max_live: Annotated[int, MayChange()] = Field(
            4096, ge=1, description="Most episodes played at the same time."
        )

    config: Config
    _side: RolloutSide
    _gate: asyncio.Semaphore

    async def open(self, ctx: ExecutorContext) -> None:
        self._side, self._gate = ctx.side, asyncio.Semaphore(self.config.max_live)
        await self._side.open(ctx.engine)

    async def play(self, job: RolloutJob) -> Rollout:
        """Play a job; jobs begin in the order in which they were given."""
        async with self._gate:
            return await self._side.play(job)

    async def close(self) -> None:
        await self._side.close()
