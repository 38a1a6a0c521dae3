"""Handling of Ctrl-C: the first finishes the step, the second stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets.

    The second signal raises KeyboardInterrupt. It also restores the default handlers, so that a third one
    ends the process even where a library catches that exception.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event  # only the main thread may handle signals
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if not event.is_set():
            event.set()
            click.echo("\nfinishing the step; press again to stop at once", err=True)
            return
        for watched in SIGNALS:
            signal.signal(watched, signal.SIG_DFL)
        raise KeyboardInterrupt

    previous = {watched: signal.signal(watched, handle) for watched in SIGNALS}
    try:
        yield event
    finally:
        for watched, handler in previous.items():
            signal.signal(watched, handler)
