"""One tracker in a thread of its own: what it does slowly, wrongly or never costs its own rows only."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from queue import SimpleQueue
from typing import Any

from coterie.core.plugins.origin import failure, origin_of

log = logging.getLogger("coterie")

WAITING = {"track": 1000}
"""Calls of a method that may wait at one time; more are dropped."""
OTHERS_WAITING = 20
"""The same of every other method: one call may hold the episodes of a step."""
FAILURES = 3
"""Failures in a row after which a tracker receives nothing more; of `open` or `truncate` one is enough."""
SLOW_SECONDS = 30.0
"""A call that lasts longer is reported."""


class TrackerThread:
    """Calls a tracker in order. Nobody waits for a call but the last, and it keeps no process alive."""

    def __init__(self, tracker: Any) -> None:
        self.tracker = tracker
        self.lost = 0
        """Calls that stored nothing: they failed, were dropped, or came after the last failure."""
        self._calls: SimpleQueue[tuple[str, int, tuple[Any, ...]]] = SimpleQueue()
        self._waiting: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._failures = 0
        self._reported = False
        self._begun: tuple[str, int, float] | None = None
        """The call that lasts: method, step, and when it began."""
        self._thread = threading.Thread(target=self._run, name="coterie-tracker", daemon=True)

    def put(self, method: str, step: int, *arguments: Any) -> None:
        """Call a method once the calls before it are done; where too many wait, it is dropped."""
        if self._thread.ident is None:
            self._thread.start()
        begun = self._begun
        if begun is not None and time.monotonic() - begun[2] > SLOW_SECONDS:
            self._report(begun[1], f"{begun[0]} takes more than {SLOW_SECONDS:.0f} s; later rows wait")
        with self._lock:
            full = self._waiting[method] >= WAITING.get(method, OTHERS_WAITING)
            self._waiting[method] += not full
        if full:
            self._lose(method)
            self._report(step, "it is slower than the run, and rows are dropped")
        else:
            self._calls.put((method, step, arguments))

    def end(self, deadline: float) -> None:
        """Wait until `close` has returned, or until a time of `time.monotonic`; say what is lost."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        begun = self._begun
        if begun is not None and self._thread.is_alive():
            left = sum(number for method, number in self._waiting.items() if method.startswith("track"))
            self.lost += left
            self._report(begun[1], f"{begun[0]} didn't return in time, and is waited for no longer")
        if self.lost:
            origin = origin_of(self.tracker)
            log.warning("rows of this run that %s (%s) has lost: %d", origin, origin.path, self.lost)

    def _run(self) -> None:
        method = ""
        while method != "close":
            method, step, arguments = self._calls.get()
            self._begun = (method, step, time.monotonic())
            if self._failures < FAILURES or method == "close":
                self._call(method, step, arguments)
            else:
                self._lose(method)
            with self._lock:
                self._waiting[method] -= 1
            self._begun = None

    def _call(self, method: str, step: int, arguments: tuple[Any, ...]) -> None:
        try:
            getattr(self.tracker, method)(*arguments)
            self._failures = 0
        except (Exception, SystemExit) as error:  # a library may call sys.exit
            self._failures = self._failures + 1 if method.startswith("track") else FAILURES
            self._lose(method)
            self._report(step, failure(self.tracker, method, error))

    def _lose(self, method: str) -> None:
        with self._lock:
            self.lost += method.startswith("track")

    def _report(self, step: int, what: str) -> None:
        """Tell the first trouble of the tracker; the number of lost rows follows at the end."""
        if not self._reported:
            self._reported = True
            origin = origin_of(self.tracker)
            who = "" if what.startswith(str(origin)) else f"{origin}: "
            out = "; this tracker receives nothing more" if self._failures >= FAILURES else ""
            log.warning("step %d: %s%s%s; metrics.jsonl has all rows (%s)", step, who, what, out, origin.path)
