"""Rows of plain JSON: one row of metrics a step.

Numbers that are not finite are null; floats are written exactly (`repr`)."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.errors import RunFolderError
from coterie.core.storage.atomic import sync_folder, write_atomic

log = logging.getLogger("coterie")


class MetricsLog:
    """`metrics.jsonl`: one row a step, on the disk when `append` returns.

    A row is one write to the end of the file, so a kill leaves at most one torn line, the last. A torn line
    found on opening is cut.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = self._open()

    def append(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write `{"step": step, **metrics}`.

        Raises:
            OSError: e.g. the disk is full; nothing of the row stays.
            ValueError: the log is closed, or `metrics` has a key `step`.
        """
        if self._handle < 0:
            raise ValueError(f"{self.path} is closed")
        if "step" in metrics:
            raise ValueError("'step' is the row's own key")
        line = (to_json({"step": step, **metrics}) + "\n").encode()
        before = os.fstat(self._handle).st_size
        try:
            done = 0
            while done < len(line):
                done += os.write(self._handle, line[done:])
            os.fsync(self._handle)
        except BaseException:
            os.ftruncate(self._handle, before)
            raise

    def truncate_after(self, step: int) -> int:
        """Cut the rows of later steps, as a resume from a checkpoint of `step` needs; returns how many."""
        lines = list(_lines(self.path))
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
        sync_folder(self.path.parent)  # or the file itself could be gone after a power cut
        return handle


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file; a torn last line (of a killed run, or of one that writes now) is left out.

    Raises:
        RunFolderError: there is no such file, or a line before the last is damaged.
    """
    if not path.is_file():
        raise RunFolderError(
            f"{path} doesn't exist", why="the run has not finished a step yet, or it is no run"
        )
    return [row for _, row in _lines(path) if row is not None]


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """(raw line, row); the row of a torn last line is None."""
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            intact = isinstance(row, dict) and isinstance(row.get("step"), int) and line.endswith(b"\n")
        except ValueError:
            intact = False
        if intact:
            yield line, row
        elif number == len(lines):
            log.warning("%s: line %d is torn and left out", path, number)
            yield line, None
        else:
            raise RunFolderError(
                f"{path}, line {number} is damaged",
                why="only the last line can be torn by a kill; this one was changed on the disk or by hand",
                fix="restore the file from a copy, or delete that line",
            )


# ------------------------------------------------------------------------------------------------------ JSON


def to_json(value: Mapping[str, Any]) -> str:
    """One line of strict JSON: floats exact, NaN and infinities as null with their keys kept."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=_plain)
        text.encode()
    except ValueError:
        # A number that is not finite, or half a surrogate pair in what a model wrote. Both are rare, and
        # cleaning walks through every token of the row.
        return json.dumps(_cleaned(value), allow_nan=False)
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} can't be written as JSON")


def _cleaned(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _cleaned(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cleaned(one) for one in value]
    return value
