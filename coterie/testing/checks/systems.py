"""`check_executor`, `check_data`, `check_tracker`: order, records, rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coterie.core.errors import SystemFault, UserError
from coterie.testing.support.failure import ConformanceError, guarded, require, require_kind
from coterie.testing.support.values import fingerprint, pickled

_NAP = 0.05


def check_executor(executor: Any) -> None:
    """Check an executor.

    - `map` returns the results in the order of the items, whichever was done first; no items give [].
    - Items are played at the same time.
    - An exception reaches the caller as it was raised, and whoever still played is stopped.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(executor, "executor")
    asyncio.run(_check_map(executor, f"{name}.map"))


async def _check_map(executor: Any, where: str) -> None:
    async def later(item: int) -> tuple[int, float, float]:
        begin = time.monotonic()
        await asyncio.sleep(_NAP / (1 + item))
        return item, begin, time.monotonic()

    items = list(range(6))
    with guarded(where):
        results = await executor.map(later, items)
        empty = await executor.map(later, [])
    require(
        [one[0] for one in results] == items, "returns results in another order than the items", where=where
    )
    require(list(empty) == [], f"returned {empty!r} for no items", where=where)
    overlap = max(begin for _, begin, _ in results[:2]) < min(end for _, _, end in results[:2])
    require(
        overlap,
        "plays one item after the other",
        where=where,
        fix="asyncio.gather: batches form across episodes",
    )
    finished: list[int] = []

    async def fails(item: int) -> int:
        if item == 2:
            raise SystemFault("item 2 broke")
        await asyncio.sleep(_NAP)
        finished.append(item)
        return item

    try:
        await executor.map(fails, items)
    except SystemFault as fault:
        require(
            "item 2 broke" in str(fault), f"raised {fault!r} for SystemFault('item 2 broke')", where=where
        )
    except Exception as error:
        raise ConformanceError(
            f"turned a SystemFault into {type(error).__name__}", where=where, fix="let it through as it is"
        ) from error
    else:
        require(False, "swallowed an exception", where=where, fix="let it through")
    known = list(finished)
    await asyncio.sleep(2 * _NAP)
    require(
        finished == known,
        "leaves episodes playing after it has raised",
        where=where,
        fix="cancel the rest: a strand that nobody waits for keeps batches from forming",
    )


def check_data_source(
    source: Any, *, splits: Sequence[str] = ("train", "val", "test"), limit: int = 1000
) -> None:
    """Check a data source.

    - `records(split)` is a sequence: its length, its items by index and in a loop agree; asked again it
      holds the same. A split other than the first may be refused with a UserError.
    - A record is a mapping with text keys, plain enough for pickle; the first split has some.
    - No record is in two splits.

    Args:
        splits: those that it has.
        limit: records of a split that are looked at.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    where = f"{require_kind(source, 'data_source')}.records"
    home: dict[str, str] = {}
    for split in splits:
        try:
            records = source.records(split)
        except UserError:
            if split != splits[0]:
                continue
            raise
        with guarded(where):
            count = min(len(records), limit)
            rows = [records[index] for index in range(count)]
            looped = [row for row, _ in zip(records, range(count), strict=False)]
            again = source.records(split)
            repeated = [again[index] for index in range(min(len(again), limit))]
        require(rows or split != splits[0], f"the split '{split}' has no record", where=where)
        for row in rows:
            table = isinstance(row, Mapping) and all(isinstance(key, str) for key in row)
            require(table, f"{row!r} is no record", where=where, fix="{field: value}, fields named by text")
            pickled(row, where)
        marks = [fingerprint(row) for row in rows]
        require(
            marks == [fingerprint(row) for row in looped],
            "gives other rows in a loop than by index",
            where=where,
        )
        require(
            marks == [fingerprint(row) for row in repeated], "gives other rows when asked again", where=where
        )
        for row, mark in zip(rows, marks, strict=True):
            other = home.setdefault(mark, split)
            require(
                other == split,
                f"{row!r} is in '{other}' and in '{split}'",
                where=where,
                fix="split by a hash of the content: a score on what was trained on says nothing",
            )


def check_tracker(
    tracker: Any,
    *,
    folder: Path | None = None,
    read: Callable[[Path], Sequence[int]] | None = None,
) -> None:
    """Check a tracker by leading it through a run and a resume.

    - It takes rows of numbers, texts, None and NaN, step by step, and leaves them as they are.
    - `open` leaves what is in the run's folder alone; after `close` it can be opened again (a resume), rows
      after a step can be forgotten with `truncate`, and told anew. Closing twice, or unopened, is harmless.
    - With `read`, the steps that it kept are exactly those that count.

    Args:
        folder: the run's folder; by default one that is made and removed.
        read: folder -> the steps that the tracker has kept, in order, where that can be known.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(tracker, "tracker")
    with TemporaryDirectory() if folder is None else nullcontext(str(folder)) as place:
        _lead(tracker, name, Path(place), read)


def _lead(tracker: Any, name: str, folder: Path, read: Callable[[Path], Sequence[int]] | None) -> None:
    own = folder / "config.yaml"
    own.write_text("the run's own\n", encoding="utf-8")
    with guarded(f"{name}.close", "a run that fails early closes what it never opened"):
        tracker.close()
    _tell(tracker, name, folder, (1, 2, 3))
    _tell(tracker, name, folder, (3, 4), after=2)
    kept = own.is_file() and own.read_text(encoding="utf-8") == "the run's own\n"
    require(kept, "changed or removed what is not its own in the run's folder", where=f"{name}.open")
    if read is not None:
        steps = list(read(folder))
        require(
            steps == [1, 2, 3, 4],
            f"kept the steps {steps} of a run that was resumed after step 2",
            where=name,
            fix="`track` adds a row, `open` keeps what is there, `truncate(step)` forgets the rows after it",
        )


def _tell(tracker: Any, name: str, folder: Path, steps: Sequence[int], after: int | None = None) -> None:
    with guarded(f"{name}.open"):
        tracker.open(folder)
    if after is not None:
        with guarded(f"{name}.truncate"):
            tracker.truncate(after)
    for step in steps:
        row = {"loss": 0.5 * step, "tokens": step, "missing": None, "odd": float("nan"), "note": "text"}
        mark = fingerprint(row)
        with guarded(f"{name}.track", "rows hold numbers, texts, None, and now and then a NaN"):
            tracker.track(step, row)
        require(
            fingerprint(row) == mark,
            "changed the metrics that it was told",
            where=f"{name}.track",
            fix="copy",
        )
    with guarded(f"{name}.close"):
        tracker.close()
        tracker.close()
