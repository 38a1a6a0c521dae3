"""A process that compares answers with `math_verify`, one after another, until it is ended.

A script of its own: it imports nothing of Coterie. The start takes a second, for the import of sympy; so the
process itself compares nothing, and forks a child that does. Where an answer ends the child, the next child
is there in milliseconds.

The child reads one JSON object a line, `{"reference": ..., "answer": ..., "seconds": ...}`, and writes one,
`{"equal": true}` or `{"failed": "MemoryError"}`; for a child that a signal ended the process writes `{"died":
11}`. The first line of all is `{"ready": true}`.

The seconds are of processor time, measured by the kernel: a busy machine makes no answer late. Past them the
kernel ends the child with SIGPROF, in whatever code it is.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import IO

Comparison = Callable[[str, str], bool]


def main() -> None:
    memory, parent = int(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no result
    try:
        equal = _comparison()
    except Exception as error:
        _write(results, {"failed": f"{type(error).__name__}: {error}"})
        return
    _end_with(parent)
    _write(results, {"ready": True})
    while True:
        child = os.fork()
        if child == 0:
            _serve(equal, results)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            _write(results, {"died": os.WTERMSIG(status)})


def _serve(equal: Comparison, results: IO[str]) -> None:
    """Compare until an answer fails; then the process may be in any state, and a fresh one follows."""
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
    for line in sys.stdin:
        job = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, job["seconds"])
        try:
            result: dict[str, object] = {"equal": equal(job["reference"], job["answer"])}
        except BaseException as error:  # whatever an answer raises is a result
            result = {"failed": type(error).__name__}
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(results, result)
        if "failed" in result:
            os._exit(0)
    os.kill(os.getppid(), signal.SIGKILL)  # nobody writes any more
    os._exit(0)


def _comparison() -> Comparison:
    """`math_verify`, warm: its first comparison builds tables."""
    import math_verify

    logging.disable(logging.CRITICAL)  # it warns of every call without a time-out of its own
    # Only LaTeX: the other reader hands its input to Python's `eval`, by way of sympy.
    config = (math_verify.LatexExtractionConfig(boxed_match_priority=0),)

    def read(text: str) -> list[object]:
        parsed: list[object] = math_verify.parse(
            rf"\boxed{{{text}}}", config, parsing_timeout=None, raise_on_error=False
        )
        return parsed

    def equal(reference: str, answer: str) -> bool:
        return bool(math_verify.verify(read(reference), read(answer), timeout_seconds=None))

    equal("1", r"\frac{2}{2}")
    return equal


def _write(results: IO[str], result: dict[str, object]) -> None:
    try:
        print(json.dumps(result), file=results, flush=True)
    except BrokenPipeError:
        os.killpg(0, signal.SIGKILL)


def _end_with(parent: int) -> None:
    """End this process and its child within a second of the run's, also where that was killed.

    By a signal and not by a thread: a process with threads should not fork.
    """

    def check(*_: object) -> None:
        if os.getppid() != parent:
            os.killpg(0, signal.SIGKILL)

    signal.signal(signal.SIGALRM, check)
    signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


if __name__ == "__main__":
    main()
