"""The time limit of one call of a plugin: a method that never returns is named, not waited for."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

from coterie.core.plugins.origin import place
from coterie.watchdog.stacks import Whose, of_task

T = TypeVar("T")

SECONDS = 180.0
"""Most seconds of one call. Opening, which may load a model, has ten times as many."""
_AGAIN = 1.0
"""Seconds after which a block that is still running is interrupted once more: its code may catch anything."""


class Overdue(BaseException):
    """Raised inside a call that has not returned in time. No `except Exception` of a plugin catches it.

    Args:
        watch: the call.
    """

    def __init__(self, watch: _Watch) -> None:
        self.watch = watch
        super().__init__(f"{watch.seconds:g} s are over")


@dataclass(eq=False, slots=True)
class _Watch:
    """A block whose time is limited, with the frame that it runs in."""

    seconds: float
    deadline: float
    frame: FrameType | None


_limit = SECONDS
_active: list[_Watch] = []
_before: tuple[Any, float] = (None, 0.0)
"""The handler of SIGALRM before the first block, and the time at which its timer rings; 0: it has none."""


@contextmanager
def call_limit(seconds: float) -> Iterator[None]:
    """A context in which a call of a plugin may take so many seconds."""
    global _limit
    before, _limit = _limit, seconds
    try:
        yield
    finally:
        _limit = before


def limit() -> float:
    """Most seconds of one call now."""
    return _limit


@contextmanager
def watched(frame: FrameType | None, factor: float = 1.0) -> Iterator[_Watch | None]:
    """Interrupt the block in this frame where it runs for longer than the limit.

    The system's alarm signal interrupts Python code, sleeps and locks. A block that waits for a coroutine is
    left alone while another one runs: `in_time` limits it. Outside the main thread, and on systems without
    the signal, nothing is limited here.

    Args:
        frame: of the function that holds the block.
        factor: of the limit.

    Raises:
        Overdue: the time is over.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield None
        return
    seconds = _limit * factor
    watch = _Watch(seconds, time.monotonic() + seconds, frame)
    _begin(watch)
    try:
        yield watch
    finally:
        _end(watch)


def _begin(watch: _Watch) -> None:
    global _before
    if not _active:
        handler = signal.signal(signal.SIGALRM, _ring)
        left = signal.getitimer(signal.ITIMER_REAL)[0]
        _before = handler, time.monotonic() + left if left else 0.0
    _active.append(watch)
    _arm()


def _end(watch: _Watch) -> None:
    _active.remove(watch)
    if _active:
        _arm()
        return
    handler, rings = _before
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
    if rings:
        signal.setitimer(signal.ITIMER_REAL, max(rings - time.monotonic(), 1e-3))


def _arm() -> None:
    """Set the timer to the next deadline, an earlier handler's among them."""
    deadlines = [watch.deadline for watch in _active] + ([_before[1]] if _before[1] else [])
    signal.setitimer(signal.ITIMER_REAL, max(min(deadlines) - time.monotonic(), 1e-3))


def _ring(number: int, frame: FrameType | None) -> None:
    global _before
    now = time.monotonic()
    handler, rings = _before
    if rings and rings <= now:  # the alarm is another's, such as the time limit of a test
        _before = handler, 0.0
        _arm()
        if callable(handler):
            handler(number, frame)
        return
    late = [watch for watch in _active if watch.deadline <= now]
    for watch in late:
        watch.deadline = now + _AGAIN
    _arm()
    running = set()
    while frame is not None:
        running.add(id(frame))
        frame = frame.f_back
    for watch in late:
        if id(watch.frame) in running:
            raise Overdue(watch)


async def in_time(awaitable: Awaitable[T], factor: float = 1.0) -> T:
    """What an awaitable gives.

    Raises:
        Overdue: it takes longer than the limit.
    """
    seconds = _limit * factor
    try:
        async with asyncio.timeout(seconds) as timeout:
            return await awaitable
    except TimeoutError as error:
        if not timeout.expired():
            raise
        raise Overdue(_Watch(seconds, 0.0, None)) from error


def waits_at(work: asyncio.Future[Any]) -> str:
    """` (FILE, line N)`: where in an author's code a task waits; empty: nowhere, or it is no task."""
    levels = of_task(work) if isinstance(work, asyncio.Task) else []
    authors = [level.frame for level in levels if level.whose is Whose.AUTHOR]
    frame = authors[0] if authors else None
    return place(frame.f_code.co_filename, frame.f_lineno) if frame is not None else ""


def caller(depth: int) -> FrameType:
    """The frame of the function that is `depth` calls above the one that asks."""
    return sys._getframe(depth + 1)
