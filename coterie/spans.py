"""Spans: when parts of an episode or of a step began and ended. Imports nothing of Coterie.

Code records a part by `with span("call", key):`. That is a look-up and nothing else, unless `recording` is
around it because a tracker wants the spans (`TracksSpans`). Spans are values: they travel with the rollout to
the learning side, and how a collector wants them is the tracker's business.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """A part of a run, with the time that it took. Picklable."""

    kind: str
    """`step`, and its parts `play`, `score`, `annotate`, `credit`, `update`, `sync`, `record`, `evaluate` and
    `checkpoint`; `episode`, and its parts `decision`, `call`, `tool` and `judge`."""
    place: str
    """Text of the key of what it is; of parts of a step, its number, the policy or the evaluation set."""
    start: int
    """Nanoseconds since 1970, by the clock of the machine that recorded it."""
    end: int
    parent: int = -1
    """Index of the span that it is part of, in the sequence that it came in; -1: none of it."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """Plain values; docs/spans.md lists them by kind."""
    error: str = ""
    """The exception that ended it; empty: none did."""


class Trace:
    """Spans in the order in which they began: one, and what is part of it."""

    def __init__(self, kind: str, place: str, start: int | None = None, **attributes: Any) -> None:
        begun = time.time_ns() if start is None else start
        self.spans = [TraceSpan(kind, place, begun, begun, attributes=attributes)]
        self._shared: dict[tuple[str, str], int] = {}

    def begin(self, kind: str, place: str, parent: int, attributes: dict[str, Any], shared: bool) -> int:
        """Add a span that has no end yet; returns its index. A shared one may be there already."""
        index = self._shared.get((kind, place), len(self.spans)) if shared else len(self.spans)
        if index == len(self.spans):
            begun = time.time_ns()
            self.spans.append(TraceSpan(kind, place, begun, begun, parent, attributes))
            if shared:
                self._shared[kind, place] = index
        return index

    def finish(self, index: int, error: str = "") -> None:
        """Set the end of a span, and its error."""
        self.spans[index] = replace(self.spans[index], end=time.time_ns(), error=error)

    def finished(self) -> tuple[TraceSpan, ...]:
        """All spans; the first ends now."""
        self.finish(0)
        return tuple(self.spans)


_OPEN: ContextVar[tuple[Trace, int] | None] = ContextVar("open_span", default=None)
"""The trace that is recorded, and the index of the span that is open."""


@contextmanager
def recording(trace: Trace | None) -> Iterator[Trace | None]:
    """Record into a trace; None: record nothing, whatever is recorded around it."""
    before = _OPEN.get()
    _OPEN.set(None if trace is None else (trace, 0))
    try:
        yield trace
    finally:  # no token: an asynchronous generator may be closed in another context
        _OPEN.set(before)


def span(
    kind: str, place: Any = "", *, shared: bool = False, **attributes: Any
) -> AbstractContextManager[dict[str, Any]]:
    """Record how long a `with` block takes, as part of the span that is open around it.

    Args:
        place: a key (or what has a `text`), or a text.
        shared: whether blocks of the same kind and place are one span, from the first begin to the last end.

    Yields:
        the attributes, to which the block may add; nobody reads them where nothing is recorded.
    """
    within = _OPEN.get()
    if within is None:
        return nullcontext(attributes)
    text = place if isinstance(place, str) else place.text()
    return _recorded(within[0], within[0].begin(kind, text, within[1], attributes, shared))


@contextmanager
def _recorded(trace: Trace, index: int) -> Iterator[dict[str, Any]]:
    before, error = _OPEN.get(), ""
    _OPEN.set((trace, index))
    try:
        yield trace.spans[index].attributes
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"
        raise
    finally:
        _OPEN.set(before)
        trace.finish(index, error)


def of_step(step: int, handed_out: int) -> Trace:
    """The trace of a step whose trees are played now.

    Args:
        handed_out: when its jobs were, in nanoseconds since 1970.
    """
    trace = Trace("step", str(step), handed_out)
    trace.spans.append(TraceSpan("play", str(step), handed_out, time.time_ns(), 0))
    return trace


def recorded() -> tuple[TraceSpan, ...]:
    """What was recorded of the trace that is open, which ends now; () where none is."""
    within = _OPEN.get()
    return () if within is None else within[0].finished()


def include(spans: Iterable[TraceSpan]) -> None:
    """Add the spans of another trace, as parts of the span that is open. Nothing where none is."""
    if (within := _OPEN.get()) is not None:
        trace, index = within
        offset = len(trace.spans)
        trace.spans += [
            replace(each, parent=index if each.parent < 0 else each.parent + offset) for each in spans
        ]
