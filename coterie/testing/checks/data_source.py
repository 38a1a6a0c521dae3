"""`check_data_source`: records are plain, repeat, and belong to one split each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.core.errors import UserError
from coterie.testing.support.failure import guarded, require, require_kind
from coterie.testing.support.promises import promise
from coterie.testing.support.values import fingerprint, pickled


def check_data_source(
    source: Any, *, splits: Sequence[str] = ("train", "val", "test"), limit: int = 1000
) -> None:
    """Check a data source.

    - `records(split)` is a sequence: its length, its items by index and its items in a loop agree; a second
      call gives the same records. A split other than the first may be refused with a UserError.
    - A record is a mapping with text keys that pickle can write; the first split has at least one.
    - No record is in two splits.

    Args:
        splits: names of the splits to read.
        limit: number of records to read of each split.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    where = f"{require_kind(source, 'data_source')}.records"
    promise("records repeat, are plain, and are in one split each")
    split_of_mark: dict[str, str] = {}
    for split in splits:
        try:
            records = _records(source, split, where)
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
        require(rows or split != splits[0], f"the split '{split}' has no record", where, fix="give one")
        for row in rows:
            is_record = isinstance(row, Mapping) and all(isinstance(key, str) for key in row)
            fix = "{field: value}, fields named by text"
            require(is_record, f"{row!r} is no record", where, fix=fix)
            pickled(row, where)
        marks = [fingerprint(row) for row in rows]
        require(
            marks == [fingerprint(row) for row in looped],
            "gives other rows in a loop than by index",
            where,
            fix="iterate in the order of the indices",
        )
        require(
            marks == [fingerprint(row) for row in repeated],
            "gives other rows when called again",
            where,
            fix="no draws: shuffling is the run's task",
        )
        for row, mark in zip(rows, marks, strict=True):
            first_split = split_of_mark.setdefault(mark, split)
            require(
                first_split == split,
                f"{row!r} is in '{first_split}' and in '{split}'",
                where,
                fix="split by a hash of the content: a score on training data measures nothing",
            )


def _records(source: Any, split: str, where: str) -> Any:
    """The records of a split.

    Raises:
        UserError: the source says that it has no such split.
        ConformanceError: `records` raised something else, or has not returned.
    """
    with guarded(where, "raise a UserError where the split or its file can't be had"):
        try:
            return source.records(split)
        except UserError as error:
            refused = error
    raise refused
