"""Patience: a bound on a wait for another process, and who was waited for, and since when, in words."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator
from typing import TypeVar

from coterie.core.errors import SystemFault

T = TypeVar("T")


class NoAnswer(SystemFault):
    """What was waited for gave no sign of life: it counts as dead."""


class Patience:
    """Measures how long something that is waited for has given no sign of life.

    Time in which this process itself did not run (it was stopped, or the machine slept) doesn't count.

    Args:
        who: what is waited for, as a message begins: `the vLLM of 'planner'`.
        seconds: without a sign of life, after which it counts as dead.
    """

    def __init__(self, who: str, seconds: float) -> None:
        self.who, self.seconds = who, seconds
        self.seen()

    def seen(self) -> None:
        """Measure from now on: it gave a sign of life, or is asked for one."""
        self._from, self._clock = time.monotonic(), time.time()

    @property
    def left(self) -> float:
        """Seconds until it counts as dead; 0: it does."""
        return max(0.0, self._from + self.seconds - time.monotonic())

    def __str__(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self._clock))
        return f"{self.who} has not answered for {self.seconds:g} s, since {since}"

    def ticks(self, tick: float = 1.0) -> Iterator[float]:
        """Seconds for which to wait next, at most `tick`, until it counts as dead."""
        while left := self.left:
            begin, part = time.monotonic(), min(left, tick)
            yield part
            late = time.monotonic() - begin - part
            if late > tick:  # of this process
                self._from = min(self._from + late, time.monotonic())

    async def wait(self, work: Awaitable[T]) -> T:
        """The result of `work`, which is cancelled where it is waited for in vain.

        Raises:
            NoAnswer: it counts as dead.
        """
        task = asyncio.ensure_future(work)
        try:
            for seconds in self.ticks():
                await asyncio.wait({task}, timeout=seconds)
                if task.done():
                    return task.result()
            raise NoAnswer(str(self))
        finally:
            task.cancel()
