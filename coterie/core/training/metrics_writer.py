"""Where the metrics of a run go: to its own `metrics.jsonl`, then to the trackers, each in a thread."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from queue import SimpleQueue
from typing import Any

from coterie.core.plugins.origin import failure, origin_of
from coterie.core.protocols import Tracker
from coterie.core.storage.jsonl import MetricsLog
from coterie.core.storage.run_folder import RunFolder
from coterie.spans import TraceSpan

log = logging.getLogger("coterie")
WAITING = {"track": 1000}
"""Calls of a method that may wait for a tracker, 20 of any other one; more are dropped."""
FAILURES = 3
"""Failures in a row after which a tracker receives nothing more; of `open` or `truncate` one is enough."""
SLOW_SECONDS, CLOSE_SECONDS = 30.0, 15.0
"""A call that lasts longer is reported; what the end of a run waits for all trackers together."""


class TrackerThread(threading.Thread):
    """Calls a tracker in order. Nobody waits for a call but the last, and it keeps no process alive."""

    def __init__(self, tracker: Any) -> None:
        super().__init__(name="coterie-tracker", daemon=True)
        self.tracker, self.origin = tracker, origin_of(tracker)
        self._calls: SimpleQueue[tuple[str, int, tuple[Any, ...]]] = SimpleQueue()
        self._waiting: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.lost, self._failures, self._reported = 0, 0, False
        self.wants: dict[str, Any] = {}
        self._begun = ("", 0, float("inf"))
        """The call that lasts: method, step, and when it began."""

    def want(self, name: str, method: str, kind: Any, most: float) -> None:
        """Note how much a tracker wants of what a method gets; a member says so, else this is told."""
        try:
            if not {name, method} <= {*dir(self.tracker)}:
                return
            value = getattr(self.tracker, name)
            if isinstance(value, kind) and 0 <= value <= most:
                return self.wants.update({name: value})
            what = f"{self.origin}: {name} is {repr(value)[:100]}, not of 0 to {most}"
        except (Exception, SystemExit) as error:
            what = failure(self.tracker, name, error)
        log.warning("%s; %s is never called (%s)", what, method, self.origin.path)

    def put(self, method: str, step: int, *arguments: Any) -> None:
        """Call a method once the calls before it are done; where too many wait, it is dropped."""
        if self.ident is None:
            self.start()
        lasting, since, begun = self._begun
        if time.monotonic() - begun > SLOW_SECONDS:
            slow = f"{self.origin}: {lasting} takes more than {SLOW_SECONDS:.0f} s; later rows wait"
            self._report(since, slow)
        with self._lock:
            full = self._waiting[method] >= WAITING.get(method, 20)
            self._waiting[method] += not full
        if full:
            self._report(step, f"{self.origin}: it is slower than the run, and rows are dropped", method)
        else:
            self._calls.put((method, step, arguments))

    def end(self, deadline: float) -> None:
        """Wait until `close` has returned, or until a time of `time.monotonic`; say what is lost."""
        self.join(max(0.0, deadline - time.monotonic()))
        method, step, _ = self._begun
        if self.is_alive():
            self.lost += sum(n for waiting, n in self._waiting.items() if waiting.startswith("track"))
            self._report(step, f"{self.origin}: {method} didn't return in time, and is waited for no longer")
        if self.lost:
            text = "rows of this run that %s (%s) has lost: %d"
            log.warning(text, self.origin, self.origin.path, self.lost)

    def run(self) -> None:
        method = ""
        while method != "close":
            method, step, arguments = self._calls.get()
            self._begun = (method, step, time.monotonic())
            self._call(method, step, arguments)
            self._begun = ("", 0, float("inf"))
            with self._lock:
                self._waiting[method] -= 1

    def _call(self, method: str, step: int, arguments: tuple[Any, ...]) -> None:
        if self._failures >= FAILURES and method != "close":
            return self._report(step, "", method)
        try:
            getattr(self.tracker, method)(*arguments)
            self._failures = 0
        except BaseException as error:  # this thread is the tracker's own: nobody else ends it
            self._failures = self._failures + 1 if method.startswith("track") else FAILURES
            self._report(step, failure(self.tracker, method, error), method)

    def _report(self, step: int, what: str, lost: str = "") -> None:
        """Count a call that stored nothing, by its method; tell the first trouble of the tracker."""
        with self._lock:
            self.lost += lost.startswith("track")
        if not self._reported:
            self._reported = True
            out = "; this tracker receives nothing more" if self._failures >= FAILURES else ""
            log.warning("step %d: %s%s; metrics.jsonl has all rows (%s)", step, what, out, self.origin.path)


class MetricsWriter:
    """Writes each row to `metrics.jsonl`, and hands every tracker a copy; no step waits for one."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._log: MetricsLog | None = None
        self._threads = {name: TrackerThread(tracker) for name, tracker in trackers.items()}

    def open(self, folder: RunFolder, step: int) -> None:
        """Open the metrics of a run that stands at a step."""
        self._log = MetricsLog(folder.metrics)
        self._each("open", step, lambda: folder.path)
        for thread in self._threads.values():
            thread.want("log_episodes", "track_episodes", Integral, float("inf"))
            thread.want("share", "track_spans", Real, 1)

    def truncate_after(self, step: int) -> None:
        """Remove the rows of later steps, which a resumed run writes again."""
        if self._log is not None:
            self._log.truncate_after(step)
        self._each("truncate", step, lambda: step)

    @property
    def lost(self) -> dict[str, int]:
        """Rows that trackers have lost since the run was opened, by the name of a metric."""
        return {f"machine/trackers/{name}/lost": of.lost for name, of in self._threads.items() if of.lost}

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        """Store the row of a step; without a run folder only the trackers have it.

        Raises:
            WriteError: e.g. the disk is full; no part of the row is in the file.
        """
        if self._log is not None:
            self._log.append(step, row)
        self._each("track", step, lambda: step, lambda: copy.deepcopy(row))

    def episodes(self, step: int, rows: Callable[[int], Sequence[Mapping[str, Any]]]) -> None:
        """Hand each tracker that stores episodes those of a step; `rows` makes as many as one asks for."""
        for thread in self._threads.values():
            if number := thread.wants.get("log_episodes"):
                thread.put("track_episodes", step, step, rows(number))

    @property
    def share(self) -> float | None:
        """The largest share of the episodes whose spans a tracker wants; None: none wants any spans."""
        return max((of.wants["share"] for of in self._threads.values() if "share" in of.wants), default=None)

    def spans(self, step: int, spans: Sequence[TraceSpan]) -> None:
        """Hand the spans of a step to the trackers that want them."""
        for thread in self._threads.values():
            if "share" in thread.wants:
                thread.put("track_spans", step, step, spans)

    def close(self, step: int) -> None:
        """Close the file and all trackers, which have `CLOSE_SECONDS` together."""
        if self._log is not None:
            self._log.close()
        self._each("close", step)
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads.values():
            thread.end(deadline)

    def _each(self, method: str, step: int, *arguments: Callable[[], Any]) -> None:
        for thread in self._threads.values():
            thread.put(method, step, *(make() for make in arguments))
