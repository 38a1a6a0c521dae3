"""Splits of task sets, and the content of a record that decides which split it is in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from coterie.core.errors import DataError

Record = Mapping[str, Any]
SPLITS: tuple[Split, ...] = ("train", "val", "test")


class Row(NamedTuple):
    """A record and where it stands."""

    record: Record
    file: str
    line: int


# ------------------------------------------------------------------------------------------------- contents


def content(row: Row, keys: Sequence[str] = (), ignore: Sequence[str] = ()) -> str:
    """What makes two records the same: these fields as JSON, by default all but those to `ignore`.

    Raises:
        DataError: the record lacks a key.
    """
    for key in keys:
        _require(row, key)
    kept = {
        name: value for name, value in row.record.items() if (name in keys if keys else name not in ignore)
    }
    return json.dumps(kept, sort_keys=True, ensure_ascii=False, default=str)


def _require(row: Row, key: str) -> None:
    if key not in row.record:
        fields = ", ".join(map(str, row.record)) or "none"
        raise DataError(row.file, row.line, key, "there is no such field", fix=f"its fields: {fields}")


def split_of(text: str, val_share: float, test_share: float) -> Split:
    """The split of a content, by its hash.

    The data sources split one body of records by the same rule, so that what `prepare` writes is what
    `data: {path: ...}` plays.
    """
    hashed = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).digest()
    place = int.from_bytes(hashed, "little") / 2.0**48
    return "val" if place < val_share else "test" if place < val_share + test_share else "train"


Split = Literal["train", "val", "test"]
