"""Ctrl-C finishes the step; a second one stops at once."""

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

    The second raises KeyboardInterrupt where the program is; the third, should a library hold on to
    that, is left to the system.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event  # only the main thread may handle signals; whoever started this one decides
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if not event.is_set():
            event.set()
            click.echo("\nfinishing the step; press again to stop at once", err=True)
            return
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = {each: signal.signal(each, handle) for each in SIGNALS}
    try:
        yield event
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
