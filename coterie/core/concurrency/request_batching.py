"""Batching across everything that is live (invariant 12), in an order that repeats (invariant 8).

A *strand* is a coroutine of play that may ask an engine for tokens. `Strands` counts the live ones: the
sampler opens a strand for every branch that it plays concurrently. When every live strand waits for
an engine, no request can come before an answer does, so the batch is as large as it can get and does not
depend on which episode was quicker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from coterie.core.concurrency.compute_threads import compute
from coterie.core.types import Call, Request

T = TypeVar("T")
log = logging.getLogger("coterie")

STALL_SECONDS = 120.0
"""After so long without progress a batch is formed although not every strand waits, and it is said."""


class ActiveRollouts:
    """Counts live strands and those that wait, and tells listeners when all of them wait."""

    def __init__(self) -> None:
        self.live = 0
        self.waiting = 0
        self._listeners: list[Callable[[], None]] = []

    def listen(self, all_waiting: Callable[[], None]) -> None:
        """`all_waiting` is called (from the event loop) whenever every live strand waits."""
        self._listeners.append(all_waiting)

    def forget(self, all_waiting: Callable[[], None]) -> None:
        if all_waiting in self._listeners:
            self._listeners.remove(all_waiting)

    def start(self, count: int = 1) -> None:
        self.live += count

    def stop(self) -> None:
        self.live -= 1
        self._check()

    def wait(self) -> None:
        self.waiting += 1
        self._check()

    def resume(self, count: int = 1) -> None:
        self.waiting -= count

    @property
    def idle(self) -> bool:
        return self.waiting > 0 and self.waiting >= self.live

    def _check(self) -> None:
        if self.idle:
            for listener in self._listeners:
                listener()

    async def gather(self, work: Sequence[Awaitable[T]]) -> list[T]:
        """Run the awaitables as strands of their own while the calling strand rests."""
        if len(work) == 1:
            return [await work[0]]
        self.start(len(work))
        self.live -= 1  # the caller only waits for its children
        try:
            tasks = [asyncio.ensure_future(self._strand(one)) for one in work]
            try:
                return list(await asyncio.gather(*tasks))
            except BaseException:
                for task in tasks:
                    task.cancel()
                raise
        finally:
            self.live += 1

    async def _strand(self, work: Awaitable[T]) -> T:
        try:
            return await work
        finally:
            self.stop()


class RequestBatcher:
    """Collects requests and hands them to `generate` in one list per batch, rows in key order.

    With `deterministic` a batch forms exactly when all live strands wait; otherwise as soon as the
    event loop has nothing else to do and no batch is being computed.

    Args:
        generate: a blocking function (batch, requests) -> calls, run in a thread so that the event
            loop goes on stepping environments and waiting for sandboxes.
        together: policy -> name of the batch that its requests go to; None: a batch for each policy, named
            like it.
        threaded: False calls it on the loop: for engines that cost nothing (scripted, tabular).
    """

    def __init__(
        self,
        generate: Callable[[str, list[Request]], list[Call]],
        active_rollouts: ActiveRollouts,
        *,
        deterministic: bool,
        threaded: bool = True,
        together: Callable[[str], str] | None = None,
    ) -> None:
        self._generate, self._strands, self._together = generate, active_rollouts, together
        self._deterministic, self._threaded = deterministic, threaded
        self._queue: list[tuple[Request, asyncio.Future[Call]]] = []
        self._running = False
        self._scheduled = False
        self._stall: asyncio.TimerHandle | None = None
        self.batches = 0
        active_rollouts.listen(self._all_wait)

    async def submit(self, request: Request) -> Call:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Call] = loop.create_future()
        self._queue.append((request, future))
        self._strands.wait()
        if not self._deterministic:
            self._schedule(loop)
        elif self._stall is None:
            self._stall = loop.call_later(STALL_SECONDS, self._stalled)
        return await future

    def close(self) -> None:
        self._strands.forget(self._all_wait)
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _all_wait(self) -> None:
        if self._queue:
            self._schedule(asyncio.get_running_loop())

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._scheduled and not self._running:
            self._scheduled = True
            loop.call_soon(self._flush)

    def _flush(self, stalled: bool = False) -> None:
        self._scheduled = False
        if self._running or not self._queue:
            return
        if self._deterministic and not stalled and not self._strands.idle:
            return  # a strand woke up meanwhile; its next wait calls again
        queue, self._queue = self._queue, []
        self._strands.resume(len(queue))
        # The strands of this batch count as waiting for nobody, but they are not free either: hold
        # the next batch back until these have their answers.
        self._running = True
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        queue.sort(key=lambda item: item[0].key)
        batches: dict[str, list[tuple[Request, asyncio.Future[Call]]]] = {}
        for item in queue:
            policy = item[0].policy
            batches.setdefault(self._together(policy) if self._together else policy, []).append(item)
        self.batches += len(batches)
        if self._threaded:
            self._task = asyncio.ensure_future(self._run_threaded(batches))
        else:
            for name in sorted(batches):
                self._answer(batches[name], *self._compute(name, batches[name]))
            self._done()

    async def _run_threaded(self, batches: dict[str, list[tuple[Request, asyncio.Future[Call]]]]) -> None:
        answers = []
        for name in sorted(batches):
            answers.append((batches[name], *await compute(self._compute, name, batches[name])))
        for items, calls, error in answers:
            self._answer(items, calls, error)
        self._done()

    def _compute(
        self, name: str, items: list[tuple[Request, asyncio.Future[Call]]]
    ) -> tuple[list[Call], BaseException | None]:
        try:
            return self._generate(name, [request for request, _ in items]), None
        except Exception as error:  # goes to every strand that waits for this batch
            return [], error

    @staticmethod
    def _answer(
        items: list[tuple[Request, asyncio.Future[Call]]], calls: list[Call], error: BaseException | None
    ) -> None:
        for index, (_, future) in enumerate(items):
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(calls[index])

    def _done(self) -> None:
        self._running = False
        if self._queue and (not self._deterministic or self._strands.idle):
            self._schedule(asyncio.get_running_loop())

    def _stalled(self) -> None:
        self._stall = None
        if self._queue and not self._running:
            log.warning(
                "no progress for %.0f s: %d of %d live strands wait for tokens; generating for those "
                "(the order of this batch may not repeat)",
                STALL_SECONDS,
                self._strands.waiting,
                self._strands.live,
            )
            self._flush(stalled=True)
