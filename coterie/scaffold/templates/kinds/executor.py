"""An executor: where episodes are played. This one plays them in the process of the run, some at a time.

The longest episodes are logged, since a step waits for all of its episodes.
"""

import asyncio
import logging
import time
from typing import Annotated

from pydantic import Field

from coterie import (
    ExecutorContext,
    MayChange,
    Plugin,
    PluginConfig,
    Register,
    Rollout,
    RolloutJob,
    hookimpl,
)

log = logging.getLogger(__name__)


class ExampleNameExecutor(Plugin):
    """Plays at most `live` episodes at the same time."""

    class Config(PluginConfig):
        # MayChange: it decides how fast a run goes, so a resumed run may have another value.
        live: Annotated[int, MayChange()] = Field(256, ge=2, description="Episodes at the same time.")
        slow: Annotated[float, MayChange()] = Field(
            60.0, gt=0, description="Seconds from which on the time of an episode is logged."
        )

    config: Config

    async def open(self, ctx: ExecutorContext) -> None:
        self.side, self.places = ctx.side, asyncio.Semaphore(self.config.live)
        await self.side.open(ctx.engine)

    # The core asks for all jobs of a step at once, and puts the rollouts into order itself. An exception of
    # a job is raised as it is, and when the call is cancelled, so is the job: both happen by themselves here.
    async def play(self, job: RolloutJob) -> Rollout:
        async with self.places:
            began = time.monotonic()
            rollout = await self.side.play(job)
        seconds = time.monotonic() - began
        if seconds >= self.config.slow:
            log.info("%s, chain %d: %.0f seconds", job.task.id, job.chain, seconds)
        return rollout

    async def close(self) -> None:
        await self.side.close()


@hookimpl
def register_executors(register: Register) -> None:
    register("example_name", ExampleNameExecutor)
