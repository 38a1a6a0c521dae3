"""The count of the active rollouts, which decides when an engine starts a batch.

An *active rollout* is a coroutine that may request tokens from an engine; a sampler starts one for every
branch that it samples concurrently. When all active rollouts wait for an engine, no request can arrive before
a result does: the batch is as large as possible, and it does not depend on which episode was faster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from coterie.core.concurrency.together import together

T = TypeVar("T")


class ActiveRollouts:
    """Counts the active rollouts and those that wait for an engine."""

    def __init__(self) -> None:
        self.live = 0
        self.waiting = 0
        self._listeners: list[Callable[[], None]] = []

    def listen(self, all_waiting: Callable[[], None]) -> None:
        """Call `all_waiting` on the event loop whenever all active rollouts wait."""
        self._listeners.append(all_waiting)

    def unlisten(self, all_waiting: Callable[[], None]) -> None:
        """Undo `listen`."""
        if all_waiting in self._listeners:
            self._listeners.remove(all_waiting)

    def start(self, count: int = 1) -> None:
        """Count new active rollouts."""
        self.live += count

    def stop(self) -> None:
        """Count the end of an active rollout."""
        self.live -= 1
        self._check()

    def wait(self) -> None:
        """Count an active rollout that waits for an engine."""
        self.waiting += 1
        self._check()

    def resume(self, count: int = 1) -> None:
        """Count active rollouts that no longer wait."""
        self.waiting -= count

    @property
    def idle(self) -> bool:
        """Whether all active rollouts wait."""
        return self.waiting > 0 and self.waiting >= self.live

    def _check(self) -> None:
        if self.idle:
            for listener in self._listeners:
                listener()

    async def gather(self, work: Sequence[Awaitable[T]]) -> list[T]:
        """Run awaitables as active rollouts; the caller is not counted until all of them are done."""
        if len(work) == 1:
            return [await work[0]]
        self.start(len(work))
        self.live -= 1  # the caller
        try:
            return await together(map(self._active, work))
        finally:
            self.live += 1

    async def _active(self, awaitable: Awaitable[T]) -> T:
        try:
            return await awaitable
        finally:
            self.stop()
