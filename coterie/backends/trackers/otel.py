"""Tracker `otel`: the spans of a run, for any collector of OpenTelemetry ([page](../../../docs/spans.md))."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from coterie.backends.remote.secrets import Headers, secrets_in
from coterie.backends.remote.settings import Address
from coterie.core.errors import MissingExtra
from coterie.core.plugins import MayChange, Plugin, PluginConfig
from coterie.spans import TraceSpan

if TYPE_CHECKING:
    from coterie.backends.trackers.otel_delivery import Delivery
    from coterie.backends.trackers.otel_mapping import SpanMaker

log = logging.getLogger("coterie")
LOCAL = "http://localhost:4318/v1/traces"
VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Environment variables that name a collector where the configuration names none."""


class OtelTracker(Plugin):
    """Exports the spans of a run by OTLP over HTTP. A collector that fails costs its spans, and no step."""

    class Config(PluginConfig):
        endpoint: Annotated[Address | None, MayChange()] = Field(
            None,
            description="Address that takes traces, such as http://localhost:4318/v1/traces. Default: the "
            "environment variables OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and OTEL_EXPORTER_OTLP_ENDPOINT, else "
            "that one.",
        )
        headers: Annotated[Headers, MayChange()] = Field(
            default_factory=dict, description="HTTP headers; ${NAME} in a value stands for a variable."
        )
        share: Annotated[float, MayChange()] = Field(
            0.1, ge=0, le=1, description="Of the episodes, those whose parts are exported; 0: steps alone."
        )
        content: Annotated[bool, MayChange()] = Field(
            False, description="Whether prompts, completions and what tools read and wrote are attributes."
        )
        service: Annotated[str, MayChange()] = Field(
            "coterie", min_length=1, description="`service.name`, under which viewers show the run."
        )
        timeout: Annotated[float, MayChange()] = Field(
            10.0, gt=0, description="Seconds of one batch, retries included, and of the end of the run."
        )
        batch: Annotated[int, MayChange()] = Field(512, ge=1, description="Most spans of one request.")
        waiting: Annotated[int, MayChange()] = Field(
            100_000, ge=1, description="Most spans that wait for the collector; further ones are lost."
        )

    config: Config
    _delivery: Delivery | None = None
    _maker: SpanMaker
    _began: int = 0

    def __init__(self, config: Config | None = None, build: Any = None) -> None:
        super().__init__(config, build)
        self.lost = 0
        """Spans that no collector got, of all openings."""
        if not _installed():
            raise MissingExtra("opentelemetry-sdk", "otel", needed_by="tracker otel")

    @property
    def share(self) -> float:
        return self.config.share

    def open(self, folder: Path) -> None:
        """Start the thread that exports.

        Raises:
            ConfigError: a header names an environment variable that is not set.
        """
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource

        from coterie.backends.trackers.otel_delivery import CollectorAnswers, Delivery, session_of
        from coterie.backends.trackers.otel_mapping import SpanMaker

        config, path = self.config, getattr(self.build, "path", "trackers.otel")
        endpoint = config.endpoint
        if endpoint is None and not any(os.environ.get(name) for name in VARIABLES):
            endpoint = LOCAL
        answers = CollectorAnswers()
        exporter = OTLPSpanExporter(
            endpoint=endpoint,
            headers=secrets_in(config.headers, f"{path}.headers") or None,
            timeout=config.timeout,
            session=session_of(answers),
        )
        run = folder.resolve().name
        self._maker = SpanMaker(
            run=run,
            opening=uuid.uuid4().hex,
            resource=Resource.create({"service.name": config.service, "coterie.run": run}),
            share=config.share,
            content=config.content,
        )
        place = endpoint or "the address of the environment variables"
        self._delivery = Delivery(exporter, answers, place, config.batch, config.waiting)
        self._began = time.time_ns()

    def truncate(self, step: int) -> None:
        """Nothing: a collector forgets no span. Steps that are played again have traces of their own."""

    def track(self, step: int, metrics: Mapping[str, Any]) -> None: ...

    def track_spans(self, step: int, spans: Sequence[TraceSpan]) -> None:
        """Export the spans of a step; they are made and sent in another thread."""
        if self._delivery is not None:
            self._began = min(self._began, spans[0].start)  # the run doesn't wait for `open`
            wanted, maker = self._maker.wanted(spans), self._maker
            self._delivery.send(len(wanted), lambda: [maker.span(step, *each) for each in wanted])

    def close(self) -> None:
        """Export the span of the run and what waits, for `timeout` seconds at most."""
        delivery, self._delivery = self._delivery, None
        if delivery is None:
            return
        begun, maker, ended = self._began, self._maker, time.time_ns()
        delivery.send(1, lambda: [maker.run_span(begun, ended)])
        delivery.close(self.config.timeout)
        self.lost += delivery.lost
        if delivery.lost:
            total = delivery.lost + delivery.delivered
            log.warning(
                "%d of %d spans were lost; a viewer lacks them, and no other file", delivery.lost, total
            )


def _installed() -> bool:
    try:
        return (
            find_spec("opentelemetry.sdk") is not None
            and find_spec("opentelemetry.exporter.otlp.proto.http") is not None
        )
    except ModuleNotFoundError:
        return False
