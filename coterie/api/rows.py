"""The folders of runs, the rows of their `metrics.jsonl`, and sums over them."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from coterie.api.rollout_lines import irregular
from coterie.core.errors import RunFolderError
from coterie.core.storage.checkpoint import saved_steps
from coterie.core.storage.jsonl import read_lines

log = logging.getLogger("coterie")

MOST_STEPS = 1 << 62
"""No step has such a number."""
LARGEST = 1e150
"""A larger number of a metric counts as none."""


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what the system refuses about a run folder into an error of the user.

    Raises:
        RunFolderError: the folder, or a file in it, can't be read.
    """
    try:
        yield
    except OSError as error:
        fix = "ask the run's owner to let you read the folder, or copy it"
        raise RunFolderError(f"{path} can't be read", why=str(error), fix=fix) from error


def run_folders(path: Path) -> list[Path]:
    """The folder itself if it is a run, else the runs in it, such as those of `coterie run --seeds`.

    Raises:
        RunFolderError: the folder can't be read.
    """
    with readable(path):
        if not path.is_dir():
            return []
        if (path / "config.yaml").is_file():
            return [path]
        return sorted(config.parent for config in path.glob("*/config.yaml"))


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a metrics file, without a torn last line (of a killed run, or of a write in progress).

    A warning names the steps that have no row: before the last row, or before the run's newest checkpoint.
    Another names those that have several; the last one counts.

    Raises:
        RunFolderError: there is no such file and no checkpoint, it is no regular file, or a line before the
            last is damaged.
    """
    path = Path(path)
    reached = max(saved_steps(path.parent / "checkpoints"), default=0)
    if path.exists() and not path.is_file():
        raise irregular(path)
    if not path.is_file() and not reached:
        why = "the run has not finished a step yet, or the folder is not a run folder"
        raise RunFolderError(f"{path} doesn't exist", why=why)
    rows = [row for _, row in read_lines(path) if row is not None] if path.is_file() else []
    wrong = [row["step"] for row in rows if not -MOST_STEPS < row["step"] < MOST_STEPS]
    if wrong:
        why = "a row has a number of its step that no run reaches; the file was changed by hand"
        raise RunFolderError(f"{path} is damaged", why=why, fix="restore the file from a copy")
    by_step = {row["step"]: row for row in rows}
    steps = sorted(by_step)
    if [row["step"] for row in rows] != steps:
        counts = Counter(row["step"] for row in rows)
        twice = _ranges([step for step in steps if counts[step] > 1])
        what = (
            f"has several rows of the steps {twice}; the last of each counts" if twice else "is not in order"
        )
        log.warning("%s %s. It was changed by hand, or two processes wrote it", path, what)
    _warn_of_gaps(path, steps, max(reached, steps[-1] if steps else 0))
    return [by_step[step] for step in steps]


def _warn_of_gaps(path: Path, steps: Iterable[int], last: int) -> None:
    """Warn of the steps from 1 to `last` that have no row."""
    ends = [0, *(step for step in steps if step > 0), last + 1]
    gaps = [(before + 1, after - 1) for before, after in pairwise(ends) if after - before > 1]
    if gaps:
        log.warning(
            "%s lacks the rows of %d of %d steps: %s. They can't be made again; sums leave them out",
            *(path, sum(end - start + 1 for start, end in gaps), last, _text(gaps)),
        )


def _ranges(steps: Sequence[int]) -> str:
    """`2-4, 7` of [2, 3, 4, 7]."""
    runs = [[step for _, step in run] for _, run in groupby(enumerate(steps), lambda at: at[1] - at[0])]
    return _text([(run[0], run[-1]) for run in runs])


def _text(ranges: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{start}-{end}" if end > start else str(start) for start, end in ranges)


def tokens_so_far(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Tokens generated in training up to each row.

    A row says the total itself, so that lost rows before it don't matter; one that doesn't counts its own.
    """
    totals: list[float] = []
    for row in rows:
        before = totals[-1] if totals else 0.0
        total, generated = (number_of(row.get(f"tokens/{name}")) for name in ("total", "generated"))
        added = 0.0 if math.isnan(generated) else generated
        totals.append(before + added if math.isnan(total) or not total else total)
    return totals


def number_of(value: Any) -> float:
    """What a row says as a number; NaN: it is none, or one of more than 1e150.

    Squares of larger ones, and differences of the largest, are infinite, so that nothing can be drawn or
    computed of them.
    """
    if not isinstance(value, (int, float)) or not -LARGEST <= value <= LARGEST:
        return math.nan
    return float(value)


def interval_of(value: Any) -> tuple[float, float]:
    """The bounds of an interval in a row; NaN: it has none, or is no pair."""
    low, high = value if isinstance(value, (list, tuple)) and len(value) == 2 else (None, None)
    return number_of(low), number_of(high)
