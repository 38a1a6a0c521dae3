"""The rows of `metrics.jsonl`, and sums over them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from coterie.api.rollout_lines import irregular
from coterie.core.errors import RunFolderError
from coterie.core.storage.checkpoint import saved_steps
from coterie.core.storage.jsonl import read_lines

log = logging.getLogger("coterie")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file, without a torn last line (of a killed run, or of a write in progress).

    A warning names the steps that have no row: before the last row, or before the run's newest checkpoint.
    Another names those that have several; the last one counts.

    Raises:
        RunFolderError: there is no such file and no checkpoint, it is no regular file, or a line before the
            last is damaged.
    """
    reached = max(saved_steps(path.parent / "checkpoints"), default=0)
    if path.exists() and not path.is_file():
        raise irregular(path)
    if not path.is_file() and not reached:
        why = "the run has not finished a step yet, or the folder is not a run folder"
        raise RunFolderError(f"{path} doesn't exist", why=why)
    rows = [row for _, row in read_lines(path) if row is not None] if path.is_file() else []
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
    missing = sorted({*range(1, last + 1)}.difference(steps))
    if missing:
        log.warning(
            "%s lacks the rows of %d of %d steps: %s. They can't be made again; sums leave them out",
            *(path, len(missing), last, _ranges(missing)),
        )


def _ranges(steps: Sequence[int]) -> str:
    """`2-4, 7` of [2, 3, 4, 7]."""
    runs = [[step for _, step in run] for _, run in groupby(enumerate(steps), lambda at: at[1] - at[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def tokens_so_far(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Tokens generated in training up to each row.

    A row says the total itself, so that lost rows before it don't matter; those of the first versions don't.
    """
    totals: list[float] = []
    for row in rows:
        before = totals[-1] if totals else 0.0
        totals.append(float(row.get("tokens/total") or before + float(row.get("tokens/generated") or 0)))
    return totals
