"""Active rollouts that are cancelled."""

from __future__ import annotations

import asyncio
from inspect import CORO_CLOSED, getcoroutinestate

import pytest

from coterie.core.concurrency.active_rollouts import ActiveRollouts
from coterie.core.rollout.engine_client import not_counted


async def unreached() -> None:
    raise AssertionError("it was cancelled before it began")


def test_branches_that_are_cancelled_before_they_begin_leave_nothing():
    """A run that ends cancels what is in play, wherever it is; Python warns of a coroutine nobody awaited."""
    active, branches = ActiveRollouts(), [unreached(), unreached()]

    async def go():
        active.start()
        gathering = asyncio.ensure_future(active.gather(branches))
        await asyncio.sleep(0)
        assert active.live == 2, "the branches are counted in place of the caller"
        gathering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gathering

    asyncio.run(go())
    assert active.live == 1
    assert {getcoroutinestate(branch) for branch in branches} == {CORO_CLOSED}


def test_branches_that_are_cancelled_while_they_wait_are_counted_once():
    active = ActiveRollouts()

    async def go():
        active.start()
        gathering = asyncio.ensure_future(active.gather([asyncio.sleep(60), asyncio.sleep(60)]))
        for _ in range(3):
            await asyncio.sleep(0)
        gathering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gathering

    asyncio.run(go())
    assert active.live == 1


def test_scoring_in_the_background_that_is_cancelled_before_it_begins_leaves_nothing():
    work = unreached()

    async def go():
        scoring = not_counted(work)
        scoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scoring

    asyncio.run(go())
    assert getcoroutinestate(work) == CORO_CLOSED
