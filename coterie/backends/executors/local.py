"""Executor `local`: episodes are coroutines of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from pydantic import Field

from coterie.core.plugins import Plugin, PluginConfig

T = TypeVar("T")
R = TypeVar("R")


class LocalExecutor(Plugin):
    """Plays items concurrently, at most `max_live` at a time."""

    class Config(PluginConfig):
        max_live: int = Field(4096, ge=1, description="Most episodes played at the same time.")

    config: Config

    async def map(self, play: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
        """Play every item; results are in the order of the items. The first exception cancels the rest."""
        gate = asyncio.Semaphore(self.config.max_live)

        async def play_one(item: T) -> R:
            async with gate:
                return await play(item)

        tasks = [asyncio.ensure_future(play_one(item)) for item in items]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
