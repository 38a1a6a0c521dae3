"""`check_executor`: rollouts in the order of the jobs, played at the same time; exceptions unchanged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

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
            raise SystemFault("job 2 broke")
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
    - `play` returns the rollouts in the order of the jobs, whichever finished first; no jobs give [].
    - Jobs are played at the same time.
    - An exception reaches the caller as it was raised, and the other jobs are cancelled.

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
        rollouts = await executor.play(jobs)
        empty = await executor.play([])
    sound = isinstance(rollouts, list) and all(isinstance(rollout, Rollout) for rollout in rollouts)
    require(sound, f"returned {rollouts!r:.200}", where=where, fix="a list of the side's Rollouts")
    require(
        [rollout.tree.task.id for rollout in rollouts] == [job.task.id for job in jobs],
        "returns rollouts in another order than the jobs",
        where=where,
        fix="order them by job, not by the time they finish",
    )
    require(list(empty) == [], f"returned {empty!r} for no jobs", where=where, fix="[]")
    begins, ends = [begin for _, begin, _ in side.played], [end for _, _, end in side.played]
    require(
        max(begins) < min(ends),
        "plays one job after the other",
        where=where,
        fix="asyncio.gather: engines batch requests across episodes",
    )


async def _check_exception(executor: Any, side: NappingSide, where: str) -> None:
    side.played.clear()
    jobs = _jobs(["train-0", "train-1", _FAILS, "train-3"])
    try:
        await executor.play(jobs)
    except SystemFault as fault:
        require(
            "job 2 broke" in str(fault),
            f"raised {fault!r} for SystemFault('job 2 broke')",
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
    before = len(side.played)
    require(
        not before,
        "waits for the other jobs after one has raised",
        where=where,
        fix="cancel the rest",
    )
    await asyncio.sleep(2 * _NAP)
    require(
        len(side.played) == before,
        "leaves episodes playing after it has raised",
        where=where,
        fix="cancel the rest: an active rollout that nobody awaits keeps request batches from forming",
    )
