"""Sends spans to a collector from a thread: one that is slow or broken costs its spans and no time."""

from __future__ import annotations

import io
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from requests.adapters import HTTPAdapter

from coterie.backends.remote.secrets import redacted
from coterie.core.errors import ConfigError

log = logging.getLogger("coterie")
LIBRARY = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
LAST = 1.0
"""Seconds that a request in flight may still have once the deadline is over and its retries are stopped."""
LONGEST = 2**20
"""Bytes of an answer that are read; a collector's has some dozens."""
PROVIDERS = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
)
"""Environment variables that name an installed session of OpenTelemetry's users."""


class CollectorAnswers(HTTPAdapter):
    """Sends requests of spans. An answer that is no success counts as none, and no redirect is followed.

    The exporter's library takes 3xx for success, ignores OTLP's partial success, and reads whatever comes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rejected = 0
        """Spans of the last request that the collector took and then rejected."""
        self.why = ""

    def send(self, request: Any, *args: Any, **options: Any) -> requests.Response:
        """Send a request.

        Raises:
            RequestException: the answer is a redirect, or a success that is longer than `LONGEST`.
            ReadTimeout: it didn't end within the request's time.
        """
        self.rejected, self.why = 0, ""
        request.headers["Accept-Encoding"] = "identity"  # a short answer could unfold to any length
        timeout = options.get("timeout")
        options["stream"], begun = True, time.monotonic()
        response = super().send(request, *args, **options)
        if 200 <= response.status_code < 300:
            until = begun + timeout if isinstance(timeout, (int, float)) else float("inf")
            self._read(_start_of(response, until))
        else:
            response.close()
            response.raw = io.BytesIO()
        if 300 <= response.status_code < 400:
            raise requests.RequestException(
                f"code: {response.status_code}, {response.reason}: redirects are not followed, since the "
                "headers may hold a key; name the address that takes traces"
            )
        return response

    def _read(self, body: bytes) -> None:
        """OTLP's partial success: a 200 of which some spans were rejected."""
        answer = ExportTraceServiceResponse()
        try:
            answer.ParseFromString(body)
        except Exception:  # no protobuf: the status is all that it says
            return
        self.rejected = max(0, answer.partial_success.rejected_spans)
        self.why = answer.partial_success.error_message[:300]


def _start_of(response: requests.Response, until: float) -> bytes:
    """The body, which may be read again from the response."""
    body = b""
    while part := response.raw.read1(2**16, decode_content=False):
        body += part
        if len(body) > LONGEST or time.monotonic() > until:
            response.close()
            if len(body) > LONGEST:
                raise requests.RequestException(f"its answer is longer than {LONGEST >> 20} MiB")
            raise requests.ReadTimeout("its answer didn't end in time")
    response.raw.release_conn()
    response.raw = io.BytesIO(body)
    return body


def session_of(answers: CollectorAnswers) -> requests.Session:
    """The session that the environment names, else a new one, whose answers are read by `answers`.

    Raises:
        ConfigError: no such session is installed.
    """
    session = requests.Session()
    if name := next(filter(None, map(os.environ.get, PROVIDERS)), None):
        entry = next(iter(entry_points(group="opentelemetry_otlp_credential_provider", name=name)), None)
        if entry is None:
            raise ConfigError(
                f"no credential provider {name!r} of OpenTelemetry is installed", path=PROVIDERS[0]
            )
        session = entry.load()()
    for scheme in ("http://", "https://"):
        session.mount(scheme, answers)
    return session


class Delivery:
    """Delivers spans in batches, in their order. Losses are counted, and the first one is told."""

    def __init__(
        self, exporter: OTLPSpanExporter, answers: CollectorAnswers, place: str, batch: int, waiting: int
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
