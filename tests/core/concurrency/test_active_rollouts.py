"""Active rollouts by cohort, and those that are cancelled."""

from __future__ import annotations

import asyncio
from inspect import CORO_CLOSED, getcoroutinestate

import pytest

from coterie.core.concurrency.active_rollouts import COHORT, ActiveRollouts, in_cohort
from coterie.core.rollout.engine_client import not_counted


async def unreached() -> None:
    raise AssertionError("it was cancelled before it began")


def test_a_cohort_waits_for_its_own_rollouts_alone():
    """The batch of one step must not wait for the environments of another."""
    active, heard = ActiveRollouts(), []
    active.listen(lambda: heard.append(COHORT.get()))
    for cohort in ("1", "2"):
        with in_cohort(cohort):
            active.start(2)
    with in_cohort("1"):
        active.wait()
        assert not heard and not active.all_wait("1")
        active.wait()
    assert COHORT.get() == "" and heard == ["1"]
    assert active.all_wait("1") and not active.all_wait("2")
    active.resume(2, "1")
    assert (active.live, active.waiting) == (4, 0) and not active.all_wait("1")
    with in_cohort("2"):
        active.wait()
        active.stop()  # the other one ended: nobody else of its cohort can ask
    assert heard == ["1", "2"]


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


def test_a_caller_whose_branches_end_is_never_taken_for_absent():
    """Else a batch would begin without it where the others were faster, and bits depend on the batch."""
    active, heard = ActiveRollouts(), []
    active.listen(lambda: heard.append("all wait"))

    async def branch(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def rollout() -> None:
        await active.gather([branch(1), branch(5)])
        assert active.live == 2 and not heard
        active.wait()

    async def go() -> None:
        active.start(2)
        active.wait()  # the other rollout waits all the while
        await rollout()

    asyncio.run(go())
    assert heard == ["all wait"]
