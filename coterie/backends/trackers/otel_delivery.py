"""Sends spans to a collector from a thread: one that is slow or broken costs its spans and no time."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from coterie.backends.remote.secrets import redacted
from coterie.backends.trackers.otel_answers import Answers

log = logging.getLogger("coterie")
LIBRARY = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
LAST = 1.0
"""Seconds that a request in flight may still have once the deadline is over and its retries are stopped."""


class Delivery:
    """Delivers spans in batches, in their order. Losses are counted, and the first one is told."""

    def __init__(
        self, exporter: OTLPSpanExporter, answers: Answers, place: str, batch: int, waiting: int
    ) -> None:
        self._exporter = exporter
        self._answers = answers
        self._place = place
        self._batch = batch
        self._most_waiting = waiting
        self.delivered = 0
        self.lost = 0
        self._waiting = 0
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[int, Callable[[], Iterable[ReadableSpan]]] | None] = (
            queue.SimpleQueue()
        )
        self._ended = False
        self._said: list[str] = []
        """What the exporter's library logged of the batch that it sends."""
        self._thread = threading.Thread(target=self._work, daemon=True, name="coterie-spans")
        self._thread.start()

    def send(self, count: int, make: Callable[[], Iterable[ReadableSpan]]) -> None:
        """Deliver spans that `make` makes, in the other thread. They are lost where too many wait."""
        with self._lock:
            full = self._waiting + count > self._most_waiting
            self._waiting += 0 if full else count
        if full:
            self._lose(count, f"more than {self._most_waiting} wait for it")
        else:
            self._queue.put((count, make))

    def close(self, seconds: float) -> None:
        """Deliver what waits, for so many seconds at most; the rest is lost."""
        self._queue.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._ended = True
            self._exporter.shutdown()  # ends the wait before a retry
            self._thread.join(LAST)
        else:
            self._exporter.shutdown()
        with self._lock:
            left, self._waiting = self._waiting, 0
        if left:
            self._lose(left, f"it took more than {seconds:g} seconds at the end of the run")

    def _work(self) -> None:
        LIBRARY.addFilter(self._heard)
        try:
            while (item := self._queue.get()) is not None and not self._ended:
                self._deliver(*item)
        finally:
            LIBRARY.removeFilter(self._heard)

    def _deliver(self, count: int, make: Callable[[], Iterable[ReadableSpan]]) -> None:
        try:
            spans = list(make())
        except Exception as error:  # a value that a plugin made up; the thread must live on
            self._done(count, f"they can't be written: {type(error).__name__}: {error}")
            return
        for start in range(0, len(spans), self._batch):
            if self._ended:  # `close` has counted the rest
                return
            batch = spans[start : start + self._batch]
            failure = self._export(batch)
            if not self._ended:
                rejected = 0 if failure else min(len(batch), self._answers.rejected)
                self._done(len(batch) - rejected, failure)
                if rejected:
                    self._done(
                        rejected, f"it rejected them{': ' * bool(self._answers.why)}{self._answers.why}"
                    )

    def _export(self, batch: list[ReadableSpan]) -> str:
        """Why none of a batch arrived; empty: it did."""
        self._said.clear()
        try:
            sent = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "" if sent else self._reason()

    def _done(self, count: int, failure: str) -> None:
        with self._lock:
            self._waiting -= count
            self.delivered += 0 if failure else count
        if failure:
            self._lose(count, failure)

    def _lose(self, count: int, reason: str) -> None:
        with self._lock:
            first, self.lost = not self.lost, self.lost + count
        if first:
            text = "%d spans did not reach the collector at %s: %s. Later losses are counted; the run goes on"
            log.warning(text, count, self._place, redacted(reason))

    def _heard(self, record: logging.LogRecord) -> bool:
        """Keep the library's records of this thread: they are told once, by `_lose`."""
        if record.thread != self._thread.ident:
            return True
        self._said.append(record.getMessage())
        return False

    def _reason(self) -> str:
        transient = [text for text in self._said if text.startswith("Transient error")]
        reason = (transient or self._said or ["the exporter gave no reason"])[-1]
        return reason.partition(", retrying in")[0].rstrip(".")
