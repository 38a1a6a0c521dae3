"""Executor `local`: episodes are coroutines of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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

    async def open(self, ctx: ExecutorContext) -> None:
        self._side = ctx.side
        await self._side.open(ctx.engine)

    async def play(self, jobs: Sequence[RolloutJob]) -> list[Rollout]:
        """Play every job; results are in the order of the jobs. The first exception cancels the rest."""
        gate = asyncio.Semaphore(self.config.max_live)

        async def play_one(job: RolloutJob) -> Rollout:
            async with gate:
                return await self._side.play(job)

        tasks = [asyncio.ensure_future(play_one(job)) for job in jobs]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def close(self) -> None:
        await self._side.close()
