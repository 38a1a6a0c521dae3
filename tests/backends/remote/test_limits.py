"""Concurrency, requests and tokens a minute, kept under two hundred calls at once."""

from __future__ import annotations

import asyncio
import time

import pytest

from coterie.backends.remote.answers import Expected, Usage
from coterie.backends.remote.calls import RateLimits
from tests.backends.remote.support import Sender, calls, expects, opened, request


def played(remote, sender, count, expected=None):
    """Seconds that `count` different calls take, all asked for at once."""

    async def go():
        await opened(remote)
        begin = time.monotonic()
        await asyncio.gather(
            *[remote.call(request(number), sender, expected or expects()) for number in range(count)]
        )
        seconds = time.monotonic() - begin
        await remote.close()
        return seconds

    return asyncio.run(go())


def most_in_a_minute(times, minute, amount=1.0):
    return amount * max(sum(begin <= at < begin + minute for at in times) for begin in times)


def test_no_more_calls_than_the_limit_are_under_way():
    sender = Sender(seconds=0.01)
    played(calls(concurrency=8), sender, 200)
    assert sender.sent == 200 and sender.most == 8


def test_requests_a_minute_hold_in_every_minute():
    sender = Sender()
    seconds = played(calls(concurrency=200, requests_per_minute=120, minute=1.0), sender, 200)
    assert sender.sent == 200
    assert most_in_a_minute(sender.times, 1.0) <= 120
    assert seconds < 5.0, "the limit is used: 200 calls at 120 a (short) minute"


def test_the_first_minute_has_no_burst():
    sender = Sender()
    played(calls(requests_per_minute=3, minute=0.3), sender, 4)
    gaps = [later - earlier for earlier, later in zip(sender.times, sender.times[1:], strict=False)]
    assert min(gaps) >= 0.09


def test_tokens_a_minute_hold_in_every_minute():
    sender = Sender(Usage(10, 10))
    seconds = played(calls(concurrency=200, tokens_per_minute=2400, minute=1.0), sender, 200)
    # What is sent at the window's begin has been taken before it.
    assert most_in_a_minute(sender.times, 1.0, 20.0) <= 2400 + 20
    assert seconds < 5.0


def test_a_call_larger_than_a_minutes_tokens_is_sent_and_the_next_one_waits_for_it():
    sender = Sender(Usage(300, 0))
    seconds = played(calls(tokens_per_minute=100, minute=0.1), sender, 2, Expected(Usage(300, 0), 300))
    assert sender.sent == 2 and seconds >= 0.5


@pytest.mark.parametrize(("used", "least", "most"), [(Usage(0, 10), 0.0, 0.7), (Usage(50, 50), 0.8, 3.0)])
def test_estimates_are_corrected_by_the_usage(used, least, most):
    """Thirty calls of at most 100 tokens, one after the other, at 3000 in a minute of a second."""
    sender, remote = Sender(used), calls(concurrency=1, tokens_per_minute=3000, minute=1.0)
    assert least <= played(remote, sender, 30, Expected(Usage(50, 50), 50)) <= most


def test_calls_that_use_more_than_expected_slow_the_next_ones_down():
    sender, remote = Sender(Usage(90, 10)), calls(concurrency=1, tokens_per_minute=1000, minute=1.0)
    assert played(remote, sender, 10, Expected(Usage(5, 5), 5)) >= 0.7


def test_what_a_large_call_did_not_use_is_left_for_several_small_ones():
    """At 400 tokens a minute of 0.4 s: a call of 200 that used none pays for four of 50."""

    async def go():
        limits = RateLimits(1, None, 400, minute=0.4)
        await limits.acquire(200)
        limits.correct(200, 0)
        begin = time.monotonic()
        for _ in range(4):
            await limits.acquire(50)
        return time.monotonic() - begin

    assert asyncio.run(go()) < 0.1


def test_a_shorter_pause_does_not_end_a_longer_one():
    async def go():
        limits = RateLimits(1, None, None)
        begin = time.monotonic()
        limits.pause(0.2)
        limits.pause(0.0)
        await limits.acquire(1)
        return time.monotonic() - begin

    assert asyncio.run(go()) >= 0.19


def test_a_missing_package_is_named(monkeypatch):
    import sys

    from coterie.core.errors import MissingExtra

    monkeypatch.setitem(sys.modules, "aiolimiter", None)
    with pytest.raises(MissingExtra, match=r"aiolimiter") as caught:
        asyncio.run(opened(calls(requests_per_minute=1)))
    assert "coterie[openai]" in str(caught.value)
    asyncio.run(opened(calls()))  # without a limit there is no need for it
