"""`together`: results in order, and nothing goes on after an exception."""

from __future__ import annotations

import asyncio

import pytest

from coterie.core.concurrency.active_rollouts import together


def test_results_are_in_the_order_of_the_coroutines():
    async def slow(number):
        await asyncio.sleep(0.03 / (1 + number))
        return number

    assert asyncio.run(together(map(slow, range(4)))) == [0, 1, 2, 3]
    assert asyncio.run(together([])) == []


def test_the_first_exception_is_raised_once_the_others_have_ended():
    ended = []

    async def sleeper(number):
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)  # an end that takes a moment
            ended.append(number)

    async def fails():
        await asyncio.sleep(0)
        raise LookupError("broke")

    async def go():
        with pytest.raises(LookupError, match="broke"):
            await together([sleeper(0), fails(), sleeper(2)])
        assert sorted(ended) == [0, 2]

    asyncio.run(go())


def test_cancelling_the_whole_cancels_each():
    ended = []

    async def sleeper():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(1)

    async def go():
        whole = asyncio.ensure_future(together([sleeper(), sleeper()]))
        await asyncio.sleep(0.01)
        whole.cancel()
        with pytest.raises(asyncio.CancelledError):
            await whole

    asyncio.run(go())
    assert ended == [1, 1]
