"""Tracker `jsonl`, the default: it names the file `metrics.jsonl`, which a run writes itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.core.plugins import Plugin


class JsonlTracker(Plugin):
    """Does nothing: a run writes its `metrics.jsonl` itself, whatever its trackers."""

    def open(self, folder: Path) -> None: ...

    def track(self, step: int, metrics: Mapping[str, Any]) -> None: ...

    def truncate(self, step: int) -> None: ...

    def close(self) -> None: ...
