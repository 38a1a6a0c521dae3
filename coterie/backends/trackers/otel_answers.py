"""What a collector answers to spans: an adapter of `requests` that reads little of it and believes less."""

from __future__ import annotations

import io
import os
import time
from importlib.metadata import entry_points
from typing import Any

import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from requests.adapters import HTTPAdapter

from coterie.core.errors import ConfigError

LONGEST = 2**20
"""Bytes of an answer that are read; a collector's has some dozens."""
PROVIDERS = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
)
"""Environment variables that name an installed session of OpenTelemetry's users."""


class Answers(HTTPAdapter):
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


def session_of(answers: Answers) -> requests.Session:
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
