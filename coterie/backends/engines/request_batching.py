"""Request batching across all active rollouts, in a reproducible order (`core/concurrency`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from coterie.backends.models.compute_threads import compute, compute_beside
from coterie.core.concurrency.active_rollouts import COHORT, ActiveRollouts
from coterie.core.types import Call, Request

log = logging.getLogger("coterie")

STALL_SECONDS = 120.0
"""Time without progress after which a batch starts, with a warning, although not all active rollouts wait."""

_Batch = list[tuple[Request, asyncio.Future[Call]]]


class RequestBatcher:
    """Collects requests and passes them to `generate`, one list per batch, ordered by key.

    Args:
        generate: blocking function (name of the batch, requests) -> calls.
        deterministic: batch exactly when all active rollouts of a cohort wait, and only theirs; False: as
            soon as the event loop is idle and no batch is being computed.
        threaded: run `generate` in the compute thread, so that the event loop stays free; False: on the event
            loop, for engines whose computation is negligible (scripted, tabular).
        beside_updates: compute in a thread beside that of the trainer, which updates meanwhile.
        together: policy -> name of the batch of its requests; None: one batch per policy, named after it.
    """

    def __init__(
        self,
        generate: Callable[[str, list[Request]], list[Call]],
        active_rollouts: ActiveRollouts,
        *,
        deterministic: bool,
        threaded: bool = True,
        beside_updates: bool = False,
        together: Callable[[str], str] | None = None,
    ) -> None:
        self._generate, self._active_rollouts, self._together = generate, active_rollouts, together
        self.deterministic, self._threaded = deterministic, threaded
        self._compute_in = compute_beside if beside_updates else compute
        self._queue: list[tuple[str, Request, asyncio.Future[Call]]] = []
        self._running = False
        self._scheduled = False
        self._stall: asyncio.TimerHandle | None = None
        self.batches = 0
        active_rollouts.listen(self._all_wait)

    async def submit(self, request: Request) -> Call:
        """The result of a request, once its batch is computed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Call] = loop.create_future()
        self._queue.append((COHORT.get(), request, future))
        self._active_rollouts.wait()
        if not self.deterministic:
            self._schedule(loop)
        elif self._stall is None:
            self._stall = loop.call_later(STALL_SECONDS, self._stalled)
        return await future

    def close(self) -> None:
        self._active_rollouts.unlisten(self._all_wait)
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
        cohorts = self._cohorts(stalled)
        if not cohorts:
            return  # an active rollout has resumed; its next wait schedules a flush
        queue: _Batch = []
        left, self._queue = self._queue, []
        for cohort, request, future in left:
            if cohort in cohorts:
                self._active_rollouts.resume(1, cohort)
                if not future.done():  # its rollout was cancelled
                    queue.append((request, future))
            else:
                self._queue.append((cohort, request, future))
        # Until the results are here, these rollouts do not wait, yet request nothing: start no other batch.
        self._running = True
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if self._queue and self.deterministic:
            self._stall = asyncio.get_running_loop().call_later(STALL_SECONDS, self._stalled)
        queue.sort(key=lambda item: item[0].key)
        batches: dict[str, _Batch] = {}
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

    async def _run_threaded(self, batches: dict[str, _Batch]) -> None:
        results = []
        for name in sorted(batches):
            results.append((batches[name], *await self._compute_in(self._compute, name, batches[name])))
        for items, calls, error in results:
            self._answer(items, calls, error)
        self._done()

    def _compute(self, name: str, items: _Batch) -> tuple[list[Call], BaseException | None]:
        try:
            return self._generate(name, [request for request, _ in items]), None
        except Exception as error:  # raised in every active rollout that waits for this batch
            return [], error

    @staticmethod
    def _answer(items: _Batch, calls: list[Call], error: BaseException | None) -> None:
        for index, (_, future) in enumerate(items):
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(calls[index])

    def _done(self) -> None:
        self._running = False
        if self._cohorts():
            self._schedule(asyncio.get_running_loop())

    def _cohorts(self, stalled: bool = False) -> set[str]:
        """The cohorts whose requests the next batch takes: of those that wait, the first that is due."""
        waiting = {cohort for cohort, _, _ in self._queue}
        if stalled or not self.deterministic:
            return waiting
        return set(sorted(filter(self._active_rollouts.all_wait, waiting))[:1])

    def _stalled(self) -> None:
        self._stall = None
        if self._queue and not self._running:
            waiting, live = self._active_rollouts.waiting, self._active_rollouts.live
            log.warning(
                "no progress for %.0f s: %d of %d active rollouts wait for tokens; generating for those "
                "(this batch may not be reproducible)",
                STALL_SECONDS,
                waiting,
                live,
            )
            self._flush(stalled=True)
