"""`check_executor`: jobs are played at the same time, each to its rollout; exceptions unchanged."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, NoReturn, TypeVar, cast

from coterie.core.concurrency.active_rollouts import together
from coterie.core.errors import PluginError, SystemFault
from coterie.core.protocols import (
    Engine,
    ExecutorContext,
    Rollout,
    RolloutJob,
    RolloutSide,
    ScoredRollout,
)
from coterie.core.rollout.contracts import check_rollout
from coterie.core.rollout.engine_client import LocalEngineClient
from coterie.core.types import Key, Node, Scores, Task, Tree
from coterie.testing.support.failure import ConformanceError, guarded, require, require_kind
from coterie.testing.support.promises import promise
from coterie.testing.support.time_limit import limit, waits_at
from coterie.testing.support.toys import LetterEngine

T = TypeVar("T")

CALL_SECONDS = 30.0
"""Most seconds of a call; a job of the check takes a part of one."""
_ALONE = 1.0
"""Seconds that a job waits for another one beside it."""
_FAILS, _LONG = "fails", "long"
_SECONDS_OF_LONG = 0.5
_PHASES: tuple[dict[str, Any], ...] = (
    {"evaluation": False, "greedy": False, "cohort": "step 4"},
    {"evaluation": True, "greedy": True, "cohort": ""},
    {"evaluation": True, "greedy": False, "cohort": "evaluation 4"},
)
"""What differs between the jobs of a step and those of an evaluation."""


@dataclass
class NappingSide:
    """A rollout side whose jobs wait for each other; a task `fails` raises, a task `long` takes a while."""

    opened: int = 0
    closed: int = 0
    received: list[RolloutJob] = field(default_factory=list)
    """Jobs that were begun."""
    played: list[str] = field(default_factory=list)
    """Task ids of the jobs that were played to their end."""
    live: int = 0
    most: int = 0
    """Most jobs that were played at once."""
    trees: list[Tree] = field(default_factory=list)
    """What was returned."""

    async def open(self, engine: Any) -> None:
        self.opened += 1

    async def close(self) -> None:
        self.closed += 1

    async def play(self, job: RolloutJob) -> Rollout:
        self.received.append(job)
        if job.task.id == _FAILS:
            raise SystemFault("the job broke")
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            await self._work(job)
        finally:
            self.live -= 1
        self.played.append(job.task.id)
        scored: asyncio.Future[ScoredRollout] = asyncio.get_running_loop().create_future()
        scored.set_result(ScoredRollout(Scores(), {"check/job": float(job.task.payload)}))
        root = Node(key=Key(job.task.id, job.epoch, job.chain), turn=0, stage=0, decisions={}, joints=())
        self.trees.append(Tree(task=job.task, chain=job.chain, epoch=job.epoch, root=root))
        return Rollout(self.trees[-1], scored)

    async def _work(self, job: RolloutJob) -> None:
        """Later jobs take less time, once two were played at once."""
        until = asyncio.get_running_loop().time() + _ALONE
        while job.task.id != _LONG and self.most < 2 and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.001)
        await asyncio.sleep(_SECONDS_OF_LONG if job.task.id == _LONG else 0.03 / (1 + job.task.payload))


def check_executor(executor: Any) -> None:
    """Check an executor that plays in this process.

    - `open` opens the rollout side and `close` closes it, once each.
    - `play` gives the side its job as it is, a step's and an evaluation's, and returns the side's rollout of
      it, scores included. At least two jobs are played at the same time.
    - An exception reaches the caller as it was raised.
    - A call that is cancelled ends its job, and no other.
    - No call takes longer than 30 seconds.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(executor, "executor")
    asyncio.run(_check(executor, name))


async def _check(executor: Any, name: str) -> None:
    side = NappingSide()
    client = LocalEngineClient(cast(Engine, LetterEngine()))
    given = ExecutorContext(side=cast(RolloutSide, side), make_side=NappingSide, engine=client)
    promise("it opens the rollout side once")
    await _called(f"{name}.open", executor.open, given)
    fix = "open it once" if side.opened else "await ctx.side.open(ctx.engine)"
    require(side.opened == 1, _times("opened", side.opened), f"{name}.open", fix=fix)
    promise("jobs are played at the same time, each to its rollout")
    await _check_rollouts(executor, side, f"{name}.play")
    promise("an exception reaches the caller as it was raised")
    await _check_exception(executor, f"{name}.play")
    promise("a cancelled call ends its job, and no other")
    await _check_cancelled(executor, side, f"{name}.play")
    promise("it closes the rollout side once")
    await _called(f"{name}.close", executor.close)
    fix = "close it once" if side.closed else "await the rollout side's close"
    what = _times("closed", side.closed) if side.closed else "left the rollout side open"
    require(side.closed == 1, what, f"{name}.close", fix=fix)


def _times(what: str, count: int) -> str:
    return f"{what} the rollout side {count} times"


async def _called(where: str, method: Any, *arguments: Any) -> Any:
    """The result of a method, within the time; whatever else it raises is a ConformanceError."""
    with guarded(where):
        awaitable = method(*arguments)
    fix = f"make it `async def {where.rpartition('.')[2]}`"
    require(inspect.isawaitable(awaitable), f"returned {awaitable!r:.200}", where, fix=fix)
    return await _in_time(where, _guarded(where, awaitable))


async def _guarded(where: str, work: Awaitable[T]) -> T:
    """An exit has to be caught in the task that it would end, or it ends the event loop."""
    with guarded(where):
        return await work


async def _in_time(where: str, work: Awaitable[T]) -> T:
    task, seconds = asyncio.ensure_future(work), min(CALL_SECONDS, limit())
    done, _ = await asyncio.wait([task], timeout=seconds)
    if not done:
        stands = waits_at(task)
        task.cancel()
        _failed(f"has not ended after {seconds:g} s{stands}", where, "bound what it waits for")
    if task.cancelled():
        _failed("was cancelled, and nobody asked for that", where, "cancel what a call started, and no other")
    return task.result()


def _failed(what: str, where: str, fix: str) -> NoReturn:
    raise ConformanceError(what, where=where, fix=fix)


def _jobs(names: Sequence[str]) -> list[RolloutJob]:
    """Jobs of a step, and of greedy and drawn evaluations: each field has its default in some, or in none."""
    given: dict[str, Any] = {"level": 1, "versions": {"p": 3}, "policies": {"one": None}}
    return [
        RolloutJob(task=Task(id=name, payload=index), epoch=1 + index, chain=2 + index, **given, **of_phase)
        for index, (name, of_phase) in enumerate(zip(names, cycle(_PHASES), strict=False))
    ]


async def _check_rollouts(executor: Any, side: NappingSide, where: str) -> None:
    jobs = _jobs([f"train-{index}" for index in range(6)])
    rollouts = await together(_called(where, executor.play, job) for job in jobs)
    for job, rollout in zip(jobs, rollouts, strict=True):
        try:
            check_rollout(executor, job, rollout)
        except PluginError as error:
            _failed(f"returned {rollout!r:.200} for the job {job.task.id}", where, error.fix)
        fix = "return the Rollout of the side as it is"
        what = f"returned a tree that the side didn't play: {rollout.tree!r:.200}"
        require(rollout.tree in side.trees, what, where, fix=fix)
        scored = await _in_time(f"{where}: the future `scored`", rollout.scored)
        sound = isinstance(scored, ScoredRollout) and scored.metrics == {"check/job": job.task.payload}
        require(sound, f"returned a Rollout whose `scored` is {scored!r:.200}", where, fix=fix)
    changed = [job for job in side.received if job not in jobs]
    what = f"gave the side {len(side.received)} jobs for {len(jobs)}"
    if changed:
        what = f"gave the side a job that it was not given: {changed[0]!r}"
    fix = "await the side's play of the job as it is, once"
    require(not changed and len(side.received) == len(jobs), what, where, fix=fix)
    require(
        side.most > 1,
        "plays one job after the other",
        where,
        fix="let several calls play at the same time: engines batch requests across episodes",
    )


async def _check_exception(executor: Any, where: str) -> None:
    (failing,) = _jobs([_FAILS])
    unchanged = "let the exception through unchanged"
    error = await _in_time(where, _raised(executor.play(failing)))
    require(error is not None, "swallowed an exception", where, fix="let it through")
    what = f"raised {error!r} for SystemFault('the job broke')"
    require(type(error) is SystemFault and str(error) == "the job broke", what, where, fix=unchanged)


async def _raised(work: Awaitable[Any]) -> BaseException | None:
    try:
        await work
    except (Exception, SystemExit) as error:
        return error
    return None


async def _check_cancelled(executor: Any, side: NappingSide, where: str) -> None:
    side.played.clear()
    first, second = _jobs([_LONG, "train-1"])
    cancelled, kept = (asyncio.ensure_future(executor.play(job)) for job in (first, second))
    until = asyncio.get_running_loop().time() + CALL_SECONDS
    while side.live < 1 and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(0.001)
    cancelled.cancel()
    await asyncio.wait([cancelled], timeout=CALL_SECONDS)
    with guarded(where):
        await _in_time(where, kept)
    require(cancelled.cancelled(), "goes on when its call is cancelled", where, fix="let it through")
    until = asyncio.get_running_loop().time() + 2 * _SECONDS_OF_LONG
    while side.live and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(0.001)
    require(
        side.played == ["train-1"],
        f"played {side.played} to the end after the call of {_LONG} was cancelled",
        where,
        fix="cancel that job alone: an active rollout that nobody awaits keeps request batches from forming",
    )
