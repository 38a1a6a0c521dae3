"""A process that compares answers with `math_verify`, one after another, until it is ended.

A script of its own: it imports nothing of Coterie, so that it starts in a second. It reads one JSON object a
line, `{"reference": ..., "answer": ..., "seconds": ...}`, and writes one, `{"equal": true}` or `{"failed":
"MemoryError"}`; the first line that it writes is `{"ready": true}`.

The seconds are of processor time, measured by the kernel: a busy machine makes no answer late. Past them the
kernel ends the process with SIGPROF, in whatever code it is.
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


def main() -> None:
    memory, parent = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which ends its workers
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    try:
        equal = _comparison()
    except Exception as error:
        _write(answers, {"failed": f"{type(error).__name__}: {error}"})
        return
    _write(answers, {"ready": True})
    for line in sys.stdin:
        job = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, job["seconds"])
        try:
            result: dict[str, object] = {"equal": equal(job["reference"], job["answer"])}
        except BaseException as error:  # what an answer raises is a result; SystemExit is raised by no reader
            result = {"failed": type(error).__name__}
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(answers, result)


def _comparison() -> Callable[[str, str], bool]:
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


def _write(answers: object, result: dict[str, object]) -> None:
    try:
        print(json.dumps(result), file=answers, flush=True)  # type: ignore[call-overload]
    except BrokenPipeError:
        os._exit(0)


def _end_with(parent: int) -> None:
    """End the process within a second of its parent, also where that was killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


if __name__ == "__main__":
    main()
