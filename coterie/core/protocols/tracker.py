"""The protocol of kind `tracker`: storage of metrics, beside the run's own `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from coterie.spans import TraceSpan


@runtime_checkable
class Tracker(Protocol):
    """Stores the metrics of every step.

    Its methods are called one after the other in a thread of its own. What one raises is told once; after a
    failure of `open` or `truncate`, or three of `track` in a row, the tracker receives nothing more. The run
    goes on, and waits for no call but `close`, and for that some seconds.
    """

    def open(self, folder: Path) -> None:
        """Start tracking; `folder` is the run folder."""

    def truncate(self, step: int) -> None:
        """Remove the rows of steps after `step`, which a resumed run writes again."""

    def track(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Store the row of a step; `metrics` is the tracker's own copy."""

    def close(self) -> None: ...


@runtime_checkable
class TracksEpisodes(Protocol):
    """A tracker that also stores whole episodes of a step."""

    @property
    def log_episodes(self) -> int:
        """How many episodes of a step it wants; 0: none."""

    def track_episodes(self, step: int, actions: Sequence[Mapping[str, Any]]) -> None:
        """Store the episodes of a step, one row an action, in the order in which they were played."""


@runtime_checkable
class TracksSpans(Protocol):
    """A tracker that also stores when the parts of steps and episodes began and ended."""

    @property
    def share(self) -> float:
        """The share of the episodes whose parts it wants, 0 to 1: those whose `draw` is below it."""

    def track_spans(self, step: int, spans: Sequence[TraceSpan]) -> None:
        """Store the spans of a step that is done: of the step itself, of its parts, and of its episodes."""
