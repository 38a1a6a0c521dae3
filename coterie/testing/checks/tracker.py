"""`check_tracker`: rows are kept, and a resumed run replaces the rows after its checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from inspect import getattr_static
from numbers import Integral, Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coterie.core.protocols.tracker import TracksEpisodes
from coterie.testing.support.failure import guarded, require, require_kind
from coterie.testing.support.promises import promise
from coterie.testing.support.values import unchanged

_OWN = {"config.yaml": "seed: 1\n", "metrics.jsonl": '{"step": 1}\n'}
"""Files of the run: name -> content."""


def check_tracker(
    tracker: Any,
    *,
    folder: Path | None = None,
    read: Callable[[Path], Sequence[int]] | None = None,
) -> None:
    """Check a tracker on a run and on its resume.

    - `track` accepts rows of numbers, texts, None and NaN, step by step, and leaves them unchanged.
    - It leaves the run's `config.yaml` and `metrics.jsonl` alone: the run writes both.
    - A closed tracker can be opened again (a resume): `truncate` drops the rows after a step, and their steps
      can be tracked again. `close` does nothing on a tracker that is closed or was never opened.
    - Where it stores episodes (`TracksEpisodes`), `log_episodes` is an int of 0 or more. If it is above 0,
      `track_episodes` accepts the rows of a step's episodes, before the step's own row, and leaves them
      unchanged. Their texts are what models write.
    - Where it stores spans (`TracksSpans`), `share` is a number from 0 to 1.
    - With `read`, the steps that are kept are exactly the valid ones.

    Args:
        folder: the run's folder; by default a temporary one.
        read: folder -> the steps that the tracker has kept, in order; for trackers whose storage is readable.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(tracker, "tracker")
    with TemporaryDirectory() if folder is None else nullcontext(str(folder)) as path:
        _run_and_resume(tracker, name, Path(path), read)


def _run_and_resume(
    tracker: Any, name: str, folder: Path, read: Callable[[Path], Sequence[int]] | None
) -> None:
    for file, text in _OWN.items():
        (folder / file).write_text(text, encoding="utf-8")
    promise("shares and counts are numbers")
    _check_numbers(tracker, name)
    promise("a tracker that was never opened can be closed")
    with guarded(f"{name}.close", "a run that fails early closes a tracker that it never opened"):
        tracker.close()
    promise("rows are accepted, and left as they are")
    _track(tracker, name, folder, (1, 2, 3))
    promise("a resumed run goes on in the same place")
    _track(tracker, name, folder, (3, 4), truncate_after=2)
    promise("the files of the run are left alone")
    for file, text in _OWN.items():
        path = folder / file
        require(
            path.is_file() and path.read_text(encoding="utf-8") == text,
            f"changed or removed {file}, which is not its own, in the run's folder",
            name,
            fix="write only to files of the tracker",
        )
    if read is not None:
        promise("the steps kept are the valid ones")
        steps = list(read(folder))
        require(
            steps == [1, 2, 3, 4],
            f"kept the steps {steps} of a run that was resumed after step 2",
            name,
            fix="`track` adds a row, `open` keeps existing rows, `truncate(step)` drops the rows after it",
        )


def _check_numbers(tracker: Any, name: str) -> None:
    """A run reads them when it opens, before the tracker is open."""
    for member, method, kind, most, fix in (
        (
            "log_episodes",
            "track_episodes",
            Integral,
            float("inf"),
            "how many episodes of a step it stores; 0: none",
        ),
        ("share", "track_spans", Real, 1, "the share of the episodes whose parts it stores, 0 to 1"),
    ):
        if not hasattr(tracker, method) or getattr_static(tracker, member, None) is None:
            continue
        with guarded(f"{name}.{member}", "a run reads it when it opens"):
            value = getattr(tracker, member)
        require(
            isinstance(value, kind) and not isinstance(value, bool) and 0 <= float(value) <= most,
            f"is {value!r}",
            f"{name}.{member}",
            fix=f"return {fix}",
        )


def _track_episodes(tracker: TracksEpisodes, name: str, step: int) -> None:
    """Two episodes: one of two actions, and one whose scores are missing."""
    if not tracker.log_episodes:
        return
    rows = [
        {
            "step": step, "task": "t-1", "epoch": 0, "chain": 0, "episode": episode, "turn": 0,
            "stage": stage, "role": role, "policy": "shared", "branch": 1, "prompt": "[user]\n1 + 1 = | ?",
            "thought": "", "completion": text, "tool_results": ["2"], "fault": None,
            "scores": {"right": score}, "reward": score, "advantage": score, "tokens": 3, "success": score,
        }
        for episode, stage, role, text, score in (
            (0, 0, "planner", "<script>alert('2')</script>\n| \x1b[1m \u4e8c", 1.0),
            (0, 1, "solver", "", 0.5),
            (1, 0, "planner", "2", None),
        )
    ]  # fmt: skip
    where = f"{name}.track_episodes"
    with unchanged(rows, "the episodes that it was given", where, "copy the rows"):
        with guarded(where, "texts are what models write"):
            tracker.track_episodes(step, rows)


def _track(
    tracker: Any, name: str, folder: Path, steps: Sequence[int], truncate_after: int | None = None
) -> None:
    with guarded(f"{name}.open"):
        tracker.open(folder)
    if truncate_after is not None:
        with guarded(f"{name}.truncate"):
            tracker.truncate(truncate_after)
    for step in steps:
        if isinstance(tracker, TracksEpisodes):
            _track_episodes(tracker, name, step)
        row = {"loss": 0.5 * step, "tokens": step, "missing": None, "odd": float("nan"), "note": "text"}
        where = f"{name}.track"
        with unchanged(row, "the metrics that it was given", where, "copy the row"):
            with guarded(where, "rows hold numbers, texts, None and sometimes NaN"):
                tracker.track(step, row)
    with guarded(f"{name}.close"):
        tracker.close()
        tracker.close()
