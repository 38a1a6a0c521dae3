"""Where the metrics of a run go: to its own `metrics.jsonl`, then to the trackers."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.core.plugins.origin import failure
from coterie.core.protocols import Tracker
from coterie.core.storage.jsonl import MetricsLog
from coterie.core.storage.run_folder import RunFolder

log = logging.getLogger("coterie")


@dataclass(slots=True)
class MetricsWriter:
    """Writes the row of each step to `metrics.jsonl`, and hands every tracker a copy.

    A tracker that raises is told once, and called again only to close it. The run goes on.
    """

    trackers: Mapping[str, Tracker]
    _log: MetricsLog | None = None
    _failed: set[str] = field(default_factory=set)
    """Names of the trackers that raised."""

    def open(self, folder: RunFolder, step: int) -> None:
        """Open the metrics of a run that stands at a step."""
        self._log = MetricsLog(folder.metrics)
        self._each("open", step, lambda tracker: tracker.open(folder.path))

    def truncate_after(self, step: int) -> None:
        """Remove the rows of later steps, which a resumed run writes again."""
        if self._log is not None:
            self._log.truncate_after(step)
        self._each("truncate", step, lambda tracker: tracker.truncate(step))

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        """Store the row of a step; without a run folder only the trackers have it.

        Raises:
            WriteError: e.g. the disk is full; no part of the row is in the file.
        """
        if self._log is not None:
            self._log.append(step, row)
        self._each("track", step, lambda tracker: tracker.track(step, copy.deepcopy(row)))

    def close(self, step: int) -> None:
        """Close the file and all trackers."""
        if self._log is not None:
            self._log.close()
        self._each("close", step, lambda tracker: tracker.close())

    def _each(self, method: str, step: int, call: Callable[[Tracker], None]) -> None:
        for name, tracker in self.trackers.items():
            if name in self._failed and method != "close":
                continue
            try:
                call(tracker)
            except (Exception, SystemExit) as error:  # a library may call sys.exit
                if name not in self._failed:
                    text = "step %d: %s; this tracker receives nothing more, and metrics.jsonl has all rows"
                    log.warning(text, step, failure(tracker, method, error))
                self._failed.add(name)
