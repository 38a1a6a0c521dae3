"""The protocol of kind `tracker`: storage of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Tracker(Protocol):
    """Stores the metrics of every step."""

    def open(self, folder: Path) -> None:
        """Start tracking; `folder` is the run folder."""

    def truncate(self, step: int) -> None:
        """Remove the rows of steps after `step`, which a resumed run writes again."""

    def track(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Store the row of a step."""

    def close(self) -> None: ...
