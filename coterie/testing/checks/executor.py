"""`check_executor`: jobs are played at the same time, each to its rollout; exceptions unchanged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from coterie.core.concurrency.together import together
from coterie.core.errors import SystemFault
from coterie.core.protocols import (
    Engine,
    ExecutorContext,
    Rollout,
    RolloutJob,
    RolloutSide,
    ScoredRollout,
)
from coterie.core.rollout.engine_client import LocalEngineClient
from coterie.core.types import Key, Node, Scores, Task, Tree
from coterie.testing.support.failure import ConformanceError, guarded, require, require_kind
from coterie.testing.support.toys import LetterEngine

_NAP = 0.05
"""Seconds."""
_FAILS = "fails"


@dataclass
class NappingSide:
    """A rollout side whose later jobs take less time; a task `fails` raises."""

    opened: int = 0
    played: list[tuple[str, float, float]] = field(default_factory=list)
    """Task id, begin and end of every job that was played to its end."""

    async def open(self, engine: Any) -> None:
        self.opened += 1

    async def close(self) -> None:
        self.opened -= 1

    async def play(self, job: RolloutJob) -> Rollout:
        begin = time.monotonic()
        if job.task.id == _FAILS:
            raise SystemFault("the job broke")
        await asyncio.sleep(_NAP / (1 + int(job.task.payload)))
        self.played.append((job.task.id, begin, time.monotonic()))
        scored: asyncio.Future[ScoredRollout] = asyncio.get_running_loop().create_future()
        scored.set_result(ScoredRollout(Scores(), {}))
        key = Key(job.task.id, job.epoch, job.chain)
        return Rollout(
            Tree(
                task=job.task,
                chain=job.chain,
                epoch=job.epoch,
                root=Node(key=key, turn=0, stage=0, decisions={}, joints=()),
            ),
            scored,
        )


def check_executor(executor: Any) -> None:
    """Check an executor that plays in this process.

    - `open` opens the rollout side and `close` closes it, once each.
    - `play` returns the rollout of its job, and several jobs are played at the same time.
    - An exception reaches the caller as it was raised.
    - A call that is cancelled ends its job, and no other.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(executor, "executor")
    asyncio.run(_check(executor, name))


async def _check(executor: Any, name: str) -> None:
    side = NappingSide()
    client = LocalEngineClient(cast(Engine, LetterEngine()))
    with guarded(f"{name}.open"):
        await executor.open(
            ExecutorContext(side=cast(RolloutSide, side), make_side=NappingSide, engine=client)
        )
    require(
        side.opened == 1,
        f"opened the rollout side {side.opened} times",
        where=f"{name}.open",
        fix="await ctx.side.open(ctx.engine)",
    )
    await _check_rollouts(executor, side, f"{name}.play")
    await _check_exception(executor, side, f"{name}.play")
    with guarded(f"{name}.close"):
        await executor.close()
    require(
        side.opened == 0,
        "left the rollout side open",
        where=f"{name}.close",
        fix="await the rollout side's close",
    )


def _jobs(names: Sequence[str]) -> list[RolloutJob]:
    return [RolloutJob(task=Task(id=name, payload=index)) for index, name in enumerate(names)]


async def _check_rollouts(executor: Any, side: NappingSide, where: str) -> None:
    jobs = _jobs([f"train-{index}" for index in range(6)])
    with guarded(where):
        rollouts = await together(map(executor.play, jobs))
    for job, rollout in zip(jobs, rollouts, strict=True):
        sound = isinstance(rollout, Rollout)
        require(sound, f"returned {rollout!r:.200}", where=where, fix="return the side's Rollout")
        require(
            rollout.tree.task.id == job.task.id,
            f"returned the rollout of {rollout.tree.task.id} for the job {job.task.id}",
            where=where,
            fix="return the rollout of the job: several are played at the same time",
        )
    begins, ends = [begin for _, begin, _ in side.played], [end for _, _, end in side.played]
    require(
        max(begins) < min(ends),
        "plays one job after the other",
        where=where,
        fix="hold no lock while a job is played: engines batch requests across episodes",
    )


async def _check_exception(executor: Any, side: NappingSide, where: str) -> None:
    failing, first, second = _jobs([_FAILS, "train-0", "train-1"])
    try:
        await executor.play(failing)
    except SystemFault as fault:
        require(
            "the job broke" in str(fault),
            f"raised {fault!r} for SystemFault('the job broke')",
            where=where,
            fix="let the exception through unchanged",
        )
    except Exception as error:
        raise ConformanceError(
            f"turned a SystemFault into {type(error).__name__}",
            where=where,
            fix="let the exception through unchanged",
        ) from error
    else:
        require(False, "swallowed an exception", where=where, fix="let it through")
    side.played.clear()
    with guarded(where):
        cancelled, kept = (asyncio.ensure_future(executor.play(job)) for job in (first, second))
        await asyncio.sleep(_NAP / 10)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        await kept
    require(cancelled.cancelled(), "goes on when its call is cancelled", where=where, fix="let it through")
    await asyncio.sleep(2 * _NAP)
    require(
        [task for task, _, _ in side.played] == ["train-1"],
        f"played {[task for task, _, _ in side.played]} to the end after the call of train-0 was cancelled",
        where=where,
        fix="cancel that job alone: an active rollout that nobody awaits keeps request batches from forming",
    )
