"""Hides the memory, environment and open files of this process from other processes of its user."""

from __future__ import annotations

import ctypes
import threading

_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4
_lock = threading.Lock()
_count, _former = 0, 1


class Hidden:
    """One use of the hiding, until `end`."""

    def __init__(self) -> None:
        self._ended = False

    def end(self) -> None:
        """End this use; the last one restores the former state. A second call does nothing."""
        global _count
        with _lock:
            if self._ended:
                return
            self._ended = True
            _count -= 1
            if _count == 0 and _former == 1:
                _prctl(_PR_SET_DUMPABLE, 1)


def hide() -> Hidden:
    """Hide this process: its /proc/<pid>/mem, environ and fd are root's, and it can't be traced.

    Nor does it leave core dumps, and debuggers and profilers of the same user can't attach to it.
    """
    global _count, _former
    with _lock:
        if _count == 0:
            _former = _prctl(_PR_GET_DUMPABLE)
            _prctl(_PR_SET_DUMPABLE, 0)
        _count += 1
    return Hidden()


def is_hidden() -> bool:
    """Whether this process is hidden."""
    return _prctl(_PR_GET_DUMPABLE) == 0


def _prctl(option: int, value: int = 0) -> int:
    word = ctypes.c_ulong
    answer: int = ctypes.CDLL(None).prctl(option, word(value), word(0), word(0), word(0))
    return answer
