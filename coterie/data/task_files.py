"""Data sets: the content of a record, splits by it, and files with a manifest.

Equal contents are never in two splits, and where a record goes depends on nothing but its content: not on
its line, not on the other records.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.core.errors import ConfigError, DataError, UserError
from coterie.core.storage.atomic import write_atomic
from coterie.core.types.splits import SPLITS, Record, Row, content, require_field, split_of

MANIFEST = "manifest.json"
FORMATS = ("jsonl", "parquet")


# --------------------------------------------------------------------------------------- splits by content


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How records become splits."""

    keys: tuple[str, ...] = ()
    """Fields that are the content; empty: all."""
    val_share: float = 0.1
    test_share: float = 0.1
    limit: int | None = None
    """Most distinct records of a part of the source; which ones depends on their contents alone."""


@dataclass(slots=True)
class Prepared:
    """Records by split, in an order that follows from their contents, and what became of the others."""

    splits: dict[str, list[Record]] = field(default_factory=dict)
    read: int = 0
    duplicates: int = 0
    """Dropped: the content was there already."""
    conflicts: int = 0
    """Of these, how many differ from the record that was kept, in fields that are no key."""
    shared: dict[tuple[str, str], int] = field(default_factory=dict)
    """(split, other) -> records dropped from `split` since their content is in `other`."""
    over_limit: int = 0


def renamed(rows: Sequence[Row], names: Mapping[str, str]) -> list[Row]:
    """The rows with other names of fields, old -> new.

    Raises:
        DataError: a record lacks an old name, or has the new one already.
    """
    found = []
    for row in rows:
        for old, new in names.items():
            require_field(row, old)
            if new in row.record and new not in names:
                raise DataError(row.file, row.line, new, f"it is there, and '{old}' is to be renamed to it")
        found.append(
            row._replace(record={names.get(name, name): value for name, value in row.record.items()})
        )
    return found


def prepare(body: Sequence[Row], cut: Cut, own: Mapping[str, Sequence[Row]] | None = None) -> Prepared:
    """Split records by the hash of their content; duplicates are dropped.

    Args:
        body: what is to be split.
        own: splits that the source has itself, `val` or `test`. They are kept, and what is in one of them is
            dropped from the others: from `body`, and from `val` what is in `test`. Their shares are 0.

    Raises:
        DataError: a record lacks a key.
        ConfigError: there is no record, or none for a split that should have a share.
    """
    own = own or {}
    found = Prepared()
    parts: dict[str, dict[str, Record]] = {}
    earlier: dict[str, set[str]] = {}
    for name, rows in {**own, "train": body}.items():
        parts[name] = _distinct(rows, cut.keys, found)
    for name in reversed(SPLITS):
        if name not in parts:
            continue
        for other, taken in earlier.items():
            clash = parts[name].keys() & taken
            found.shared[name, other] = len(clash)
            parts[name] = {text: one for text, one in parts[name].items() if text not in clash}
        earlier[name] = set(parts[name])
    for name, records in parts.items():
        kept = _limited(records, cut.limit)
        found.over_limit += len(records) - len(kept)
        for text, record in kept:
            goes = name if name != "train" else split_of(text, cut.val_share, cut.test_share)
            found.splits.setdefault(goes, []).append(record)
    _check_splits(found, cut, own)
    found.splits = {name: found.splits[name] for name in SPLITS if name in found.splits}
    return found


def _distinct(rows: Sequence[Row], keys: Sequence[str], found: Prepared) -> dict[str, Record]:
    """By content; of equal ones the record whose JSON comes first in the alphabet, wherever it stands."""
    kept: dict[str, tuple[str, Record]] = {}
    wholes: dict[str, Counter[str]] = {}
    for row in rows:
        text = content(row, keys)
        line = line_of(row)
        wholes.setdefault(text, Counter())[content(row)] += 1
        if text not in kept or line < kept[text][0]:
            kept[text] = line, row.record
    found.read += len(rows)
    found.duplicates += len(rows) - len(kept)
    for text, (_, record) in kept.items():
        found.conflicts += wholes[text].total() - wholes[text][content(Row(record, "", 0))]
    return {text: record for text, (_, record) in kept.items()}


def _limited(records: Mapping[str, Record], limit: int | None) -> list[tuple[str, Record]]:
    """In the order of a hash that is not the one which decides on the split: any limit keeps the shares."""

    def order(item: tuple[str, Record]) -> tuple[bytes, str]:
        return hashlib.blake2b(item[0].encode(), digest_size=8, person=b"order").digest(), item[0]

    return sorted(records.items(), key=order)[:limit]


def _check_splits(found: Prepared, cut: Cut, own: Mapping[str, Any]) -> None:
    if not found.read:
        raise ConfigError("the source is empty", why="there is no record in it")
    shares = {"train": 1.0, "val": cut.val_share, "test": cut.test_share}
    for name, share in shares.items():
        if (share > 0 or name in own) and not found.splits.get(name):
            raise ConfigError(
                f"no record is left for the split '{name}'",
                why=f"{found.read:,} were read, {found.duplicates:,} of them duplicates; where one goes is "
                "the hash of its content",
                fix="use more records or another share; --val-share 0 or --test-share 0 leaves a split out",
            )


# ---------------------------------------------------------------------------------------------------- files


def line_of(row: Row) -> str:
    """The record as a line of JSON.

    Raises:
        DataError: a value has no form in JSON (bytes, a number that is not finite).
    """
    try:
        return _json(row.record)
    except (TypeError, ValueError) as whole:
        for name, value in row.record.items():
            try:
                _json({name: value})
            except (TypeError, ValueError) as error:
                raise DataError(row.file, row.line, str(name), f"no value for JSON: {error}") from None
        raise DataError(row.file, row.line, "-", f"no record for JSON: {whole}") from None


def _json(value: Record) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
    text.encode()  # half a surrogate pair is a str and no UTF-8
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} can't be written as JSON")


def older(folder: Path, *, force: bool) -> list[Path]:
    """Files of a data set that is in the folder already.

    Raises:
        UserError: there is one, and no `force`.
    """
    names = (MANIFEST, *(f"{split}.{ending}" for split in SPLITS for ending in FORMATS))
    there = [folder / name for name in names if (folder / name).exists()]
    if there and not force:
        raise UserError(
            f"there is a data set in {folder} already",
            path="--out",
            why="it holds " + ", ".join(path.name for path in there),
            fix="choose another folder, or replace it with --force",
        )
    return there


def claim(folder: Path, *, force: bool) -> None:
    """Make the folder ready for a data set; with `force` an older one in it is removed.

    Raises:
        UserError: there is one, and no `force`; or the folder can't be written.
    """
    there = older(folder, force=force)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in there:
            path.unlink()
    except OSError as error:
        raise UserError(f"{folder} can't be written", path="--out", why=str(error)) from error


def write_jsonl(path: Path, records: Iterable[Record]) -> int:
    """One record a line; whole or not at all.

    Returns:
        How many there were.
    """
    count = 0
    unfinished = path.with_name(path.name + ".part")
    try:
        with unfinished.open("w", encoding="utf-8", newline="\n") as file:
            for count, record in enumerate(records, 1):
                file.write(line_of(Row(record, str(path), count)) + "\n")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def sha256(path: Path) -> str:
    """Of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, facts: Mapping[str, Any], files: Mapping[str, tuple[Path, int]]) -> Record:
    """Say what the files are, how many records each has, and their sha256; `facts` come first."""
    splits = {
        split: {"file": path.name, "records": count, "sha256": sha256(path)}
        for split, (path, count) in files.items()
    }
    manifest = {**facts, "splits": splits}
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """What `write_manifest` wrote.

    Raises:
        UserError: it is damaged, or a file that it names isn't there.
    """
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        files = {split: folder / str(about["file"]) for split, about in manifest["splits"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} can't be read", why=f"{type(error).__name__}: {error}") from error
    for split, file in files.items():
        if not file.is_file():
            raise UserError(f"the file of split '{split}' is gone: {file}", why=f"{path} names it")
    return manifest


def changed(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Files that are not what the manifest says."""
    return [
        about["file"]
        for about in manifest["splits"].values()
        if sha256(folder / about["file"]) != about.get("sha256")
    ]
