"""`metrics.jsonl`: one row of strict JSON per step. Floats are exact; NaN and infinities are null."""

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
from coterie.core.storage.atomic import sync_folder, write_atomic, written

log = logging.getLogger("coterie")


def read_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """(raw line, row); the row of a torn last line is None."""
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        row = _row(line)
        if row is not None:  # the last one may lack its newline
            yield line.rstrip(b"\r\n") + b"\n", row
        elif number == len(lines):
            log.warning("%s: line %d is torn and left out", path, number)
            yield line, None
        else:
            why = "a kill tears only the last line; this one was changed on the disk or by hand"
            fix = "restore the file from a copy, or delete that line"
            raise RunFolderError(f"{path}, line {number} is damaged", why=why, fix=fix)


def _row(line: bytes) -> dict[str, Any] | None:
    """The row of a line; None: it is none."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


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
            WriteError: e.g. the disk is full; no part of the row is left.
            ValueError: the log is closed, or `metrics` has a key `step`.
        """
        if self._handle < 0:
            raise ValueError(f"{self.path} is closed")
        if "step" in metrics:
            raise ValueError("the metrics can't have a key 'step': it is the row's own key")
        line = (to_json({"step": step, **metrics}) + "\n").encode()
        size = os.fstat(self._handle).st_size
        with written(f"the row of step {step} in {self.path}"):
            try:
                done = 0
                while done < len(line):
                    done += os.write(self._handle, line[done:])
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
        with written(self.path):
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            raw = self.path.read_bytes()
            end = raw.rfind(b"\n") + 1
            if _row(raw[end:]) is not None:
                os.write(handle, b"\n")
            elif end < len(raw):
                log.warning("%s: cut a torn last line of %d bytes", self.path, len(raw) - end)
                os.ftruncate(handle, end)
            sync_folder(self.path.parent)  # so that a power cut can't remove the file itself
        return handle


def to_json(value: Mapping[str, Any]) -> str:
    """One line of strict JSON. Floats are exact; NaN and infinities are null; another type: TypeError."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=_plain)
        text.encode()
    except ValueError:
        # A number that is not finite, or half a surrogate pair in a model's text. Both are rare, and
        # cleaning visits every token of the row.
        return json.dumps(finite(value), allow_nan=False)
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} can't be written as JSON")


def finite(value: Any) -> Any:
    """The value for strict JSON: a number that is not finite becomes None."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
