"""The count of the active rollouts, which decides when an engine starts a batch.

An *active rollout* is a coroutine that may request tokens from an engine; a sampler starts one for every
branch that it samples concurrently. When all active rollouts wait for an engine, no request can arrive before
a result does: the batch is as large as possible, and it does not depend on which episode was faster.

Rollouts of different *cohorts* (those of a step, those of an evaluation) are counted apart, since which of
them play at the same time depends on the speed of the trainer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import CORO_CREATED, getcoroutinestate, iscoroutine
from typing import TypeVar

T = TypeVar("T")

COHORT: ContextVar[str] = ContextVar("cohort", default="")
"""The cohort of the rollout that this coroutine belongs to."""


@contextmanager
def in_cohort(cohort: str) -> Iterator[None]:
    """Count the rollouts that begin here, and all that they start, in a cohort."""
    token = COHORT.set(cohort)
    try:
        yield
    finally:
        COHORT.reset(token)


class ActiveRollouts:
    """Counts the active rollouts of each cohort and those that wait for an engine."""

    def __init__(self) -> None:
        self._live: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._listeners: list[Callable[[], None]] = []

    def listen(self, all_waiting: Callable[[], None]) -> None:
        """Call `all_waiting` on the event loop whenever all active rollouts of a cohort wait."""
        self._listeners.append(all_waiting)

    def unlisten(self, all_waiting: Callable[[], None]) -> None:
        """Undo `listen`."""
        if all_waiting in self._listeners:
            self._listeners.remove(all_waiting)

    def start(self, count: int = 1) -> None:
        """Count new active rollouts of the caller's cohort."""
        self._add(self._live, count)

    def stop(self) -> None:
        """Count the end of an active rollout."""
        self._add(self._live, -1)
        self._check()

    def wait(self) -> None:
        """Count an active rollout that waits for an engine."""
        self._add(self._waiting, 1)
        self._check()

    def resume(self, count: int = 1, cohort: str | None = None) -> None:
        """Count active rollouts of a cohort (None: the caller's) that no longer wait."""
        self._add(self._waiting, -count, cohort)

    @property
    def live(self) -> int:
        """Active rollouts of all cohorts."""
        return self._live.total()

    @property
    def waiting(self) -> int:
        """Those that wait for an engine."""
        return self._waiting.total()

    def all_wait(self, cohort: str) -> bool:
        """Whether all active rollouts of a cohort wait."""
        return self._waiting[cohort] > 0 and self._waiting[cohort] >= self._live[cohort]

    @staticmethod
    def _add(counts: Counter[str], count: int, cohort: str | None = None) -> None:
        cohort = COHORT.get() if cohort is None else cohort
        counts[cohort] += count
        if not counts[cohort]:
            del counts[cohort]

    def _check(self) -> None:
        if self.all_wait(COHORT.get()):
            for listener in self._listeners:
                listener()

    async def gather(self, work: Sequence[Awaitable[T]]) -> list[T]:
        """Run awaitables as active rollouts. The caller is one of them until all are done.

        The last one that ends leaves its count to the caller. If the caller were counted only when it goes
        on, all others could wait just before, and whether a batch began without it would depend on speed.
        """
        if len(work) < 2:
            return [await each for each in work]
        self.start(len(work) - 1)
        left = len(work)

        def ended() -> None:
            nonlocal left
            left -= 1
            if left:
                self.stop()

        async def active(awaitable: Awaitable[T]) -> T:
            try:
                return await awaitable
            finally:
                ended()

        try:
            return await together(map(active, work))
        finally:
            for each in work:  # a task that was cancelled before it began has run nothing
                if iscoroutine(each) and getcoroutinestate(each) == CORO_CREATED:
                    each.close()
                    ended()


async def together(work: Iterable[Awaitable[T]]) -> list[T]:
    """The results of coroutines or tasks that run at the same time, in their order.

    The first exception cancels the others, and is raised unchanged once they have ended.
    """
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
