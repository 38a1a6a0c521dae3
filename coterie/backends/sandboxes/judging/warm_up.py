"""One judged run inside a worker, before its first program. Sent into the sandbox: stdlib only.

CPython specialises the bytecode of a function and fills its caches of types while a function runs. In a fork
each such write copies a page that is shared with the worker, so the worker makes the writes once.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable

from . import candidate_side, test_side

_CANDIDATE = "def double(n):\n    return [n, str(n), {n: None}]\n"
_TESTS = "for n in range(12):\n    assert double(n) == [n, str(n), {n: None}]\n" + "assert True\n" * 12


def _one_side(ours: Callable[[int], None], theirs: Callable[[int], None]) -> None:
    """Run `ours` here and `theirs` in a child."""
    ends = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            ends[0].close()
            theirs(ends[1].fileno())
        finally:
            os._exit(0)
    ends[1].close()
    ours(ends[0].detach())
    os.waitpid(child, 0)


def _tests(channel: int) -> None:
    with open(os.devnull, "wb") as report:
        test_side.main(_TESTS, ["double"], 60.0, 60.0, channel, report.fileno())
    os.close(channel)


def _candidate(channel: int) -> None:
    candidate_side.main(_CANDIDATE, channel)
    os.close(channel)


def _run() -> None:
    for _ in range(8):
        _one_side(_tests, _candidate)
        _one_side(_candidate, _tests)
    sys.modules.pop("solution", None)
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)


_run()
