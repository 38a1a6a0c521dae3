"""Limits of the rate of calls: at once, requests a minute, tokens a minute."""

from __future__ import annotations

import asyncio
from typing import Any

from coterie.core.errors import MissingExtra

MINUTE = 60.0


class RateLimits:
    """Keeps calls within the limits in every minute, also the first, and in the order in which they come.

    A limit is kept as a leaky bucket with one second's share, so that the calls of a minute are spread over
    it. Tokens are taken by an estimate; `correct` gives the difference to the next calls.

    Args:
        minute: seconds of a minute, for tests.
    """

    def __init__(
        self, concurrency: int, requests: float | None, tokens: float | None, minute: float = MINUTE
    ) -> None:
        self.slots = asyncio.Semaphore(concurrency)
        self._requests = None if requests is None else _bucket(requests, minute)
        self._tokens = None if tokens is None else _bucket(tokens, minute)
        self._turn = asyncio.Lock()
        self._owed = 0.0
        self._not_before = 0.0

    async def acquire(self, tokens: float) -> None:
        """Wait until a call of about so many tokens may be sent; it may be larger than a minute's limit."""
        async with self._turn:  # one after the other: an early call is never overtaken
            loop = asyncio.get_running_loop()
            while (pause := self._not_before - loop.time()) > 0:
                await asyncio.sleep(pause)
            if self._requests is not None:
                await _take(self._requests, 1.0)
            if self._tokens is not None:
                wanted, self._owed = tokens + self._owed, 0.0
                if wanted < 0:
                    self._owed = wanted
                await _take(self._tokens, wanted)

    def correct(self, estimated: float, used: float) -> None:
        """Note what a call really used."""
        if self._tokens is not None:
            self._owed += used - estimated

    def pause(self, seconds: float) -> None:
        """Send nothing for so long: the server asked for it."""
        self._not_before = max(self._not_before, asyncio.get_running_loop().time() + seconds)


def _bucket(limit: float, minute: float) -> Any:
    """A limiter that lets at most `limit` pass in any minute: its burst and what leaks meanwhile."""
    try:
        from aiolimiter import AsyncLimiter
    except ImportError as error:
        raise MissingExtra("aiolimiter", "openai", needed_by="requests_per_minute") from error
    burst = max(1.0, limit / MINUTE)
    rate = (limit - burst if burst > 1 else limit) / minute
    return AsyncLimiter(burst, burst / rate)


async def _take(bucket: Any, amount: float) -> None:
    """Take an amount in parts of the bucket's size: a larger one is never acquired at once."""
    while amount > 0:
        part = min(amount, bucket.max_rate)
        await bucket.acquire(part)
        amount -= part
