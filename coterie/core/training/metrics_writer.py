"""Where the metrics of a run go: to its own `metrics.jsonl`, then to the trackers."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.core.protocols import Tracker
from coterie.core.protocols.tracker import TracksEpisodes
from coterie.core.storage.jsonl import MetricsLog
from coterie.core.storage.run_folder import RunFolder
from coterie.core.training.tracker_thread import TrackerThread

CLOSE_SECONDS = 15.0
"""How long the end of a run waits for all trackers together."""
Rows = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class MetricsWriter:
    """Writes the row of each step to `metrics.jsonl`, and hands every tracker a copy.

    Each tracker is called in a thread of its own (`tracker_thread.py`); no step waits for one.
    """

    trackers: Mapping[str, Tracker]
    _log: MetricsLog | None = None
    _threads: dict[str, TrackerThread] = field(init=False)

    def __post_init__(self) -> None:
        self._threads = {name: TrackerThread(tracker) for name, tracker in self.trackers.items()}

    def open(self, folder: RunFolder, step: int) -> None:
        """Open the metrics of a run that stands at a step."""
        self._log = MetricsLog(folder.metrics)
        self._each("open", step, lambda: folder.path)

    def truncate_after(self, step: int) -> None:
        """Remove the rows of later steps, which a resumed run writes again."""
        if self._log is not None:
            self._log.truncate_after(step)
        self._each("truncate", step, lambda: step)

    @property
    def lost(self) -> dict[str, int]:
        """Rows that trackers have lost since the run was opened, by the name of a metric."""
        counted = {f"machine/trackers/{name}/lost": thread.lost for name, thread in self._threads.items()}
        return {name: number for name, number in counted.items() if number}

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        """Store the row of a step; without a run folder only the trackers have it.

        Raises:
            WriteError: e.g. the disk is full; no part of the row is in the file.
        """
        if self._log is not None:
            self._log.append(step, row)
        self._each("track", step, lambda: step, lambda: copy.deepcopy(row))

    def episodes(self, step: int, rows: Callable[[int], Rows]) -> None:
        """Hand each tracker that stores episodes those of a step; `rows` makes as many as one asks for."""
        for thread in self._threads.values():
            tracker = thread.tracker
            if isinstance(tracker, TracksEpisodes) and tracker.log_episodes > 0:
                thread.put("track_episodes", step, step, rows(tracker.log_episodes))

    def close(self, step: int) -> None:
        """Close the file and all trackers, which have `CLOSE_SECONDS` together."""
        if self._log is not None:
            self._log.close()
        self._each("close", step)
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads.values():
            thread.end(deadline)

    def _each(self, method: str, step: int, *arguments: Callable[[], Any]) -> None:
        for thread in self._threads.values():
            thread.put(method, step, *(make() for make in arguments))
