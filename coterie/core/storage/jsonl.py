"""`metrics.jsonl`: one row of strict JSON per step. Floats are exact; NaN and infinities are null."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.errors import RunFolderError

log = logging.getLogger("coterie")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file, without a torn last line (of a killed run, or of a write in progress).

    Raises:
        RunFolderError: there is no such file, or a line before the last is damaged.
    """
    if not path.is_file():
        why = "the run has not finished a step yet, or the folder is not a run folder"
        raise RunFolderError(f"{path} doesn't exist", why=why)
    return [row for _, row in read_lines(path) if row is not None]


def read_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
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
            why = "a kill tears only the last line; this one was changed on the disk or by hand"
            fix = "restore the file from a copy, or delete that line"
            raise RunFolderError(f"{path}, line {number} is damaged", why=why, fix=fix)


def to_json(value: Mapping[str, Any]) -> str:
    """One line of strict JSON. Floats are exact; NaN and infinities are null."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=_plain)
        text.encode()
    except ValueError:
        # A number that is not finite, or half a surrogate pair in a model's text. Both are rare, and
        # cleaning visits every token of the row.
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
        return {key: _cleaned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cleaned(item) for item in value]
    return value
