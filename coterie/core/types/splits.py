"""Splits of task sets, and the rule that assigns a record to a split by its content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from coterie.core.errors import DataError

Record = Mapping[str, Any]
Split = Literal["train", "val", "test"]
"""Name of a split."""
SPLITS: tuple[Split, ...] = ("train", "val", "test")


class RecordLine(NamedTuple):
    """A record, with its file and line (from 1)."""

    record: Record
    file: str
    line: int


def content(row: RecordLine, keys: Sequence[str] = (), ignore: Sequence[str] = ()) -> str:
    """The fields that identify a record, as JSON: those in `keys`, or all except those in `ignore`.

    Raises:
        DataError: the record lacks one of `keys`.
    """
    for key in keys:
        require_field(row, key)
    kept = {name: row.record[name] for name in row.record if (name in keys if keys else name not in ignore)}
    return json.dumps(kept, sort_keys=True, ensure_ascii=False, default=str)


def require_field(row: RecordLine, key: str) -> None:
    """Raise a DataError if the record lacks the field."""
    if key not in row.record:
        fields = ", ".join(map(str, row.record)) or "none"
        raise DataError(row.file, row.line, key, "there is no such field", fix=f"its fields: {fields}")


def split_of(text: str, val_share: float, test_share: float) -> Split:
    """The split of a record, by the hash of its `content`.

    `coterie data prepare` and the data sources use the same rule, so both split a set of records alike.
    """
    hashed = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).digest()
    share = int.from_bytes(hashed, "little") / 2.0**48
    return "val" if share < val_share else "test" if share < val_share + test_share else "train"
