"""A collector of OpenTelemetry on 127.0.0.1, which keeps the spans it is sent."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Seen:
    """A span as it came."""

    name: str
    kind: str
    """`coterie.kind`."""
    trace: bytes
    id: bytes
    parent: bytes
    start: int
    end: int
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    links: list[bytes]
    """Trace ids."""
    failed: bool
    message: str
    otel_kind: int


@dataclass
class Collector:
    """`with Collector() as collector:` takes spans at `collector.endpoint` until the block ends."""

    status: Callable[[int], int] = lambda request: 200
    """The status that it answers to its n-th request, from 0."""
    hangs: bool = False
    answer: Iterable[bytes] = ()
    """The parts of its body; an endless one ends with the connection."""
    location: str = ""
    """Header `Location`."""
    raw: list[bytes] = field(default_factory=list)
    spans: list[Seen] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    requests: int = 0
    answered: int = 0
    """Bytes of all bodies."""

    def __enter__(self) -> Self:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                number, collector.requests = collector.requests, collector.requests + 1
                collector.headers.append({name.lower(): value for name, value in self.headers.items()})
                while collector.hangs:
                    time.sleep(0.02)
                status = collector.status(number)
                if status == 200:
                    collector.take(body)
                self.send_response(status)
                if collector.location:
                    self.send_header("location", collector.location)
                if not collector.answer:
                    self.send_header("content-length", "0")
                self.end_headers()
                with suppress(OSError):  # who asked has closed the connection
                    for part in collector.answer:
                        self.wfile.write(part)
                        collector.answered += len(part)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hangs = False
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def take(self, body: bytes) -> None:
        self.raw.append(body)
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        for of_resource in request.resource_spans:
            self.resources.append(_attributes(of_resource.resource.attributes))
            for of_scope in of_resource.scope_spans:
                self.spans += [_seen(span) for span in of_scope.spans]

    def of(self, kind: str) -> list[Seen]:
        return [span for span in self.spans if span.kind == kind]

    @property
    def kinds(self) -> Counter[str]:
        return Counter(span.kind for span in self.spans)


def _seen(span: Any) -> Seen:
    attributes = _attributes(span.attributes)
    return Seen(
        span.name,
        attributes["coterie.kind"],
        span.trace_id,
        span.span_id,
        span.parent_span_id,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        attributes,
        [(event.name, _attributes(event.attributes)) for event in span.events],
        [link.trace_id for link in span.links],
        span.status.code == 2,
        span.status.message,
        span.kind,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
