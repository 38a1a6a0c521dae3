"""Tracker `jsonl`: the run's `metrics.jsonl`, which resume, `compare` and the figures read."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.core.plugins import Plugin
from coterie.core.storage.atomic import sync_folder, write_atomic
from coterie.core.storage.jsonl import read_lines, to_json
from coterie.core.storage.run_folder import RunFolder

log = logging.getLogger("coterie")


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


class MetricsLog:
    """`metrics.jsonl`, open for appending. A row is on the disk when `append` returns.

    A kill leaves at most one torn line, the last. Opening the file cuts it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = self._open()

    def append(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write `{"step": step, **metrics}`.

        Raises:
            OSError: e.g. the disk is full; no part of the row is left.
            ValueError: the log is closed, or `metrics` has a key `step`.
        """
        if self._handle < 0:
            raise ValueError(f"{self.path} is closed")
        if "step" in metrics:
            raise ValueError("the metrics can't have a key 'step': it is the row's own key")
        line = (to_json({"step": step, **metrics}) + "\n").encode()
        size = os.fstat(self._handle).st_size
        try:
            written = 0
            while written < len(line):
                written += os.write(self._handle, line[written:])
            os.fsync(self._handle)
        except BaseException:
            os.ftruncate(self._handle, size)
            raise

    def truncate_after(self, step: int) -> int:
        """Cut the rows of later steps, for a resume from the checkpoint of `step`; returns their number."""
        lines = list(read_lines(self.path))
        kept = [line for line, row in lines if row is not None and row["step"] <= step]
        if len(kept) < len(lines):
            self.close()
            write_atomic(self.path, b"".join(kept))
            self._handle = self._open()
        return len(lines) - len(kept)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _open(self) -> int:
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        raw = self.path.read_bytes()
        end = raw.rfind(b"\n") + 1
        if end < len(raw):
            log.warning("%s: cut a torn last line of %d bytes", self.path, len(raw) - end)
            os.ftruncate(handle, end)
        sync_folder(self.path.parent)  # so that a power cut can't remove the file itself
        return handle
