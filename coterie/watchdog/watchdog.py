"""The thread that looks at stacks, and says which plugin's method has not returned."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType
from typing import Any, TypeVar

from coterie.watchdog.stacks import Level, PluginCall, StuckCall, Whose, awaited, calls_in, of_task, of_thread

log = logging.getLogger("coterie")
T = TypeVar("T")

TICK = 1.0
"""Most seconds between two beats of the event loop that are waited for."""
SHARE = 500
"""A look at all tasks is followed by so many times the processor time that it took, without one."""
DEEP = 20
"""Tasks that wait for tasks, one for the next."""
FIX = (
    "bound what it waits for, and raise SystemFault when the time is over; if it works for so long, raise "
    "schedule.patience, also of a resumed run; Ctrl-C twice ends the run"
)


class _Mark:
    """How long a call has lasted, kept in its frame, where it ends with the call.

    The frame's `f_trace` is the only attribute that another thread can write. A function stands there only
    where a debugger traces the frame, and such a frame is left alone. It has no effect without one.
    """

    def __init__(self, owner: Watchdog, waits: bool, since: float) -> None:
        self.owner, self.waits, self.since = owner, waits, since

    def __call__(self, *_: Any) -> _Mark:
        return self


class Watchdog(threading.Thread):
    """Names each plugin's method that has not returned for `patience` seconds, and again at each doubling.

    Three kinds of calls are seen: one that blocks the event loop, which answers no beat; one that a task
    awaits; one in another thread. Time in which this process did not run doesn't count, and of what a task
    awaits, nor does time in which the loop was blocked.

    Args:
        loop: the running event loop; None: only threads are looked at.
        tell: called, in this thread, with each call that is to be named; default: a warning.
        seen: called, in this thread, with every overdue call at every look.
        blocking: seconds for calls that block the loop, where they have fewer.
    """

    def __init__(
        self,
        patience: float,
        loop: asyncio.AbstractEventLoop | None = None,
        tell: Callable[[StuckCall], None] | None = None,
        seen: Callable[[Sequence[StuckCall]], None] | None = None,
        blocking: float | None = None,
    ) -> None:
        super().__init__(name="coterie-watchdog", daemon=True)
        self._patience, self._loop, self._tell, self._seen = patience, loop, tell or _warn, seen
        self._blocks = min(patience, blocking or patience)
        self._tick = min(TICK, self._blocks / 8)
        self._of_loop = threading.get_ident()
        self._ended = threading.Event()
        self._clock = self._beating = self._asked = self._looked = self._pause = 0.0
        self._answered = True
        self._next: dict[tuple[str, str, str, int], tuple[float, float]] = {}
        """By place of calls that are stuck: seconds after which it is named again, and when it was seen."""

    def stop(self) -> None:
        """End it; a look that goes on is not waited for."""
        self._ended.set()

    def run(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(self._tick):
            now = time.monotonic()
            active = min(now - before, 5 * self._tick)  # it was stopped, or the machine slept
            before, self._clock = now, self._clock + active
            try:
                stuck = [*self._blocking(active)]
                if self._clock - self._looked >= max(self._patience / 8, self._pause):
                    begin, self._looked = time.thread_time(), self._clock
                    stuck += [*self._in_threads(), *self._awaited()]
                    self._pause = min(SHARE * (time.thread_time() - begin), self._patience / 2)
                self._report(stuck)
            except Exception:
                log.warning("the watchdog of plugins has ended", exc_info=True)
                return

    # ------------------------------------------------------------------------------------------------ looking

    def _beat(self) -> None:
        self._answered = True

    def _blocking(self, active: float) -> Iterator[StuckCall]:
        """The call that keeps the event loop from answering."""
        if self._loop is None:
            return
        if self._answered:
            self._beating += active
            self._answered, self._asked = False, self._clock
            try:
                self._loop.call_soon_threadsafe(self._beat)
            except RuntimeError:  # it is closed
                self._ended.set()
            return
        blocked = self._clock - self._asked
        stack = of_thread(sys._current_frames().get(self._of_loop))
        # The frame of a coroutine lasts longer than what of it runs now.
        calls = calls_in(stack, awaiting=False)
        aged = ((call, min(blocked, self._age(call.frame, False))) for call in calls)
        yield from self._overdue(aged, blocks=True)

    def _in_threads(self) -> Iterator[StuckCall]:
        """Calls in other threads. Those that run an event loop have a watchdog of their own."""
        apart = {self.ident} if self._loop is None else {self.ident, self._of_loop}
        for thread, frame in sys._current_frames().items():
            if thread not in apart:
                calls = calls_in(of_thread(frame), awaiting=False)
                yield from self._overdue(
                    (call, self._age(call.frame, False))
                    for call in calls
                    if not any(level.asynchronous for level in _until(call))
                )

    def _awaited(self) -> Iterator[StuckCall]:
        """Calls that tasks await, and that wait in an author's code, or in what it calls."""
        if self._loop is None:
            return
        with suppress(RuntimeError):  # the tasks changed at each try
            for task in asyncio.all_tasks(self._loop):
                stack = of_task(task)
                calls = calls_in(stack, awaiting=True)
                waits, inner = self._waits(task, stack) if calls else (0.0, None)
                if waits:
                    there = calls if inner is None else [replace(call, inner=inner) for call in calls]
                    aged = [(call, min(waits, self._age(call.frame, True))) for call in there]
                    yield from self._overdue(aged)
                elif any(level.whose in (Whose.FRAMEWORK, Whose.BUILT_IN) for level in stack):
                    _forget(stack)  # others are parts of calls, and have no more than the call's task

    def _waits(
        self, task: asyncio.Task[Any], stack: Sequence[Level], depth: int = 0
    ) -> tuple[float, Level | None]:
        """The longest time for which a task, or one that it waits for, can have waited in an author's code.

        0: what it waits for is Coterie's. Infinite: it waits for no task. And where in another task that is.
        """
        tasks = awaited(task, stack[0].frame) if stack else []
        if not tasks or depth == DEEP:
            return float("inf"), None
        longest: tuple[float, Level | None] = 0.0, None
        for each in tasks:
            inner = of_task(each)
            theirs = [level for level in inner if level.whose is not Whose.LIBRARY]
            if not theirs:
                return float("inf"), None
            frame = theirs[-1].frame
            if theirs[0].whose is Whose.AUTHOR and frame is not None:
                seconds, place = self._waits(each, inner, depth + 1)
                seconds = min(seconds, max(self._age(frame, True), 1e-9))
                longest = max(longest, (seconds, place or theirs[0]), key=lambda pair: pair[0])
        return longest

    def _age(self, frame: FrameType, waits: bool) -> float:
        """Seconds since a frame was first seen like this; 0 for the first time.

        Args:
            waits: whether a task awaits it; else it runs.
        """
        mark, clock = frame.f_trace, self._beating if waits else self._clock
        if isinstance(mark, _Mark) and mark.waits is waits and mark.owner is self:
            return clock - mark.since
        if mark is None or (isinstance(mark, _Mark) and (mark.owner is self or mark.owner._ended.is_set())):
            frame.f_trace = _Mark(self, waits, clock)
        return 0.0

    # ------------------------------------------------------------------------------------------------ telling

    def _overdue(
        self, calls: Iterable[tuple[PluginCall, float]], blocks: bool = False
    ) -> Iterator[StuckCall]:
        """The first of the calls, the innermost first, that is overdue: those around it wait for it."""
        for call, seconds in calls:
            if seconds >= (self._blocks if blocks else self._patience):
                yield call.stuck(seconds, blocks)
                return

    def _report(self, stuck: Sequence[StuckCall]) -> None:
        """Tell the oldest call of each place whose time has come."""
        if stuck and self._seen is not None:
            self._seen(stuck)
        by_place: dict[tuple[str, str, str, int], list[StuckCall]] = {}
        for call in stuck:
            by_place.setdefault(call.place, []).append(call)
        lately = self._clock - 3 * max(self._patience / 8, self._pause, self._tick)
        self._next = {place: known for place, known in self._next.items() if known[1] > lately}
        for place, calls in by_place.items():
            oldest, (after, _) = max(calls, key=lambda call: call.seconds), self._next.get(place, (0.0, 0.0))
            if oldest.seconds >= after:
                after = 2 * oldest.seconds
                self._tell(replace(oldest, calls=len(calls)))
            self._next[place] = after, self._clock


def _until(call: PluginCall) -> Iterator[Level]:
    """The levels of a stack within a call."""
    for level in call.stack:
        yield level
        if level.of is call.frame:
            return


def _forget(stack: Sequence[Level]) -> None:
    """Begin anew with an author's coroutines: they wait for Coterie, which goes on."""
    for level in stack:
        frame = level.frame if level.whose is Whose.AUTHOR else None
        if frame is not None and isinstance(frame.f_trace, _Mark):
            frame.f_trace = None


def _warn(call: StuckCall) -> None:
    log.warning("%s; fix: %s", call, FIX)


def watch_loop(patience: float | None, **others: Any) -> Callable[[], None]:
    """Watch the running event loop, its tasks and all threads; returns what ends that.

    Args:
        patience: seconds; 0 or None: nothing is watched.
        others: arguments of `Watchdog`.
    """
    if not patience:
        return lambda: None
    watchdog = Watchdog(patience, asyncio.get_running_loop(), **others)
    watchdog.start()
    return watchdog.stop


async def watching(patience: float | None, work: Awaitable[T]) -> T:
    """The result of `work`, which runs in a loop that is watched meanwhile.

    Args:
        patience: as of `watch_loop`.
    """
    stop = watch_loop(patience)
    try:
        return await work
    finally:
        stop()


@contextmanager
def watched(patience: float | None) -> Iterator[None]:
    """A context whose calls of plugins are watched; no event loop runs them.

    Args:
        patience: seconds; 0 or None: nothing is watched.
    """
    if not patience:
        yield
        return
    watchdog = Watchdog(patience)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()
