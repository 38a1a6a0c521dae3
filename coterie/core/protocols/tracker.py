"""The protocol of kind `tracker`: is told the metrics of every step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Tracker(Protocol):
    """Is told the metrics of every step."""

    def open(self, folder: Path) -> None:
        """The run's folder; before the first row."""

    def truncate(self, step: int) -> None:
        """Forget the rows after `step`: a resumed run tells them again."""

    def track(self, step: int, metrics: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...
