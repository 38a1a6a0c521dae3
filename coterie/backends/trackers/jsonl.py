"""Tracker `jsonl`: the run's `metrics.jsonl`, which resume, `compare` and the figures read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.core.plugins import Plugin
from coterie.core.storage.jsonl import MetricsLog
from coterie.core.storage.run_folder import RunFolder


class JsonlTracker(Plugin):
    """Writes one row per step; the row is on the disk when `track` returns."""

    _log: MetricsLog | None = None

    def open(self, folder: Path) -> None:
        """Append to the metrics of the run in `folder`."""
        self.close()
        self._log = MetricsLog(RunFolder(folder).metrics)

    def track(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._opened().append(step, metrics)

    def truncate(self, step: int) -> None:
        """Delete the rows after `step`, which a resumed run plays again."""
        self._opened().truncate_after(step)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _opened(self) -> MetricsLog:
        if self._log is None:
            raise RuntimeError("the jsonl tracker is used before `open` or after `close`")
        return self._log
