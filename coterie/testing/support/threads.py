"""Threads that a plugin leaves behind: a run that is over would wait for them, without a word."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection

_GRACE = 0.5
"""Seconds in which threads that are about to end do so."""


def running() -> frozenset[threading.Thread]:
    """The threads of now."""
    return frozenset(threading.enumerate())


def left_behind(before: Collection[threading.Thread]) -> str:
    """What to tell of the threads that were started since, and that Python waits for at its end; often "".

    Args:
        before: what `running` gave.
    """
    left = [thread for thread in running().difference(before) if _holds(thread)]
    until = time.monotonic() + _GRACE
    for thread in left:
        thread.join(max(0.0, until - time.monotonic()))
    left = [thread for thread in left if _holds(thread)]
    if not left:
        return ""
    several = f"{len(left)} threads running, such as" if len(left) > 1 else "a thread running:"
    why = "a run never ends while it works; end it in `close`, or start it with daemon=True"
    return f"leaves {several} '{left[0].name}': {why}"


def _holds(thread: threading.Thread) -> bool:
    """Whether Python waits for a thread: not for daemons, nor for workers of a pool that have no work."""
    if thread.daemon or not thread.is_alive():
        return False
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is None or frame.f_code.co_name != "_worker"
