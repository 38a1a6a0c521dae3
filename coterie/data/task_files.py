"""Data sets: splits of records by content, and files with a manifest.

Equal contents are never in two splits. The split of a record depends on its content alone: not on its line,
not on the other records.
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
from coterie.core.storage.checkpoint import file_sha256
from coterie.core.types.splits import SPLITS, Record, RecordLine, content, require_field, split_of

MANIFEST = "manifest.json"
FORMATS = ("jsonl", "parquet")


# --------------------------------------------------------------------------------------- splits by content


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRule:
    """Settings of a split by content."""

    keys: tuple[str, ...] = ()
    """Fields that make up the content; empty: all."""
    val_share: float = 0.1
    test_share: float = 0.1
    limit: int | None = None
    """Most distinct records of each part of the source; the choice depends on their contents alone."""


@dataclass(slots=True)
class PreparedSplits:
    """Records by split, in an order that follows from their contents, and counts of the dropped ones."""

    splits: dict[str, list[Record]] = field(default_factory=dict)
    read: int = 0
    duplicates: int = 0
    """Records dropped because an equal content was kept."""
    conflicts: int = 0
    """Duplicates that differ from the kept record, in fields that are no key."""
    shared: dict[tuple[str, str], int] = field(default_factory=dict)
    """(split, other) -> records dropped from `split` because their content is in `other`."""
    over_limit: int = 0


def rename_fields(rows: Sequence[RecordLine], names: Mapping[str, str]) -> list[RecordLine]:
    """The rows with fields renamed, old -> new.

    Raises:
        DataError: a record lacks an old name, or has the new one already.
    """
    result = []
    for row in rows:
        for old, new in names.items():
            require_field(row, old)
            if new in row.record and new not in names:
                raise DataError(row.file, row.line, new, f"it is there, and '{old}' is to be renamed to it")
        result.append(
            row._replace(record={names.get(name, name): value for name, value in row.record.items()})
        )
    return result


def split_records(
    body: Sequence[RecordLine], rule: SplitRule, kept_splits: Mapping[str, Sequence[RecordLine]] | None = None
) -> PreparedSplits:
    """Split records by the hash of their content; duplicates are dropped.

    Args:
        body: the records to split.
        kept_splits: the source's own splits, `val` or `test`. They are kept whole, and their contents are
            dropped elsewhere: all of them from `body`, those of `test` also from `val`. Their shares are 0.

    Raises:
        DataError: a record lacks a key.
        ConfigError: there is no record, or none for a split that should have a share.
    """
    kept_splits = kept_splits or {}
    prepared = PreparedSplits()
    parts: dict[str, dict[str, Record]] = {}
    contents_of: dict[str, set[str]] = {}
    for name, rows in {**kept_splits, "train": body}.items():
        parts[name] = _distinct(rows, rule.keys, prepared)
    for name in reversed(SPLITS):
        if name not in parts:
            continue
        for other, contents in contents_of.items():
            common = parts[name].keys() & contents
            prepared.shared[name, other] = len(common)
            parts[name] = {text: record for text, record in parts[name].items() if text not in common}
        contents_of[name] = set(parts[name])
    for name, records in parts.items():
        limited = _limited(records, rule.limit)
        prepared.over_limit += len(records) - len(limited)
        for text, record in limited:
            split = name if name != "train" else split_of(text, rule.val_share, rule.test_share)
            prepared.splits.setdefault(split, []).append(record)
    _check_splits(prepared, rule, kept_splits)
    prepared.splits = {name: prepared.splits[name] for name in SPLITS if name in prepared.splits}
    return prepared


def _distinct(rows: Sequence[RecordLine], keys: Sequence[str], prepared: PreparedSplits) -> dict[str, Record]:
    """Distinct records by content; of equal contents, the record whose JSON sorts first."""
    kept: dict[str, tuple[str, Record]] = {}
    variants: dict[str, Counter[str]] = {}
    for row in rows:
        text = content(row, keys)
        line = line_of(row)
        variants.setdefault(text, Counter())[content(row)] += 1
        if text not in kept or line < kept[text][0]:
            kept[text] = line, row.record
    prepared.read += len(rows)
    prepared.duplicates += len(rows) - len(kept)
    for text, (_, record) in kept.items():
        prepared.conflicts += variants[text].total() - variants[text][content(RecordLine(record, "", 0))]
    return {text: record for text, (_, record) in kept.items()}


def _limited(records: Mapping[str, Record], limit: int | None) -> list[tuple[str, Record]]:
    """The first records in the order of a hash other than the one that splits: any limit keeps the shares."""

    def order(item: tuple[str, Record]) -> tuple[bytes, str]:
        return hashlib.blake2b(item[0].encode(), digest_size=8, person=b"order").digest(), item[0]

    return sorted(records.items(), key=order)[:limit]


def _check_splits(prepared: PreparedSplits, rule: SplitRule, kept_splits: Mapping[str, Any]) -> None:
    if not prepared.read:
        raise ConfigError("the source is empty", why="there is no record in it")
    shares = {"train": 1.0, "val": rule.val_share, "test": rule.test_share}
    for name, share in shares.items():
        if (share > 0 or name in kept_splits) and not prepared.splits.get(name):
            raise ConfigError(
                f"no record is left for the split '{name}'",
                why=f"{prepared.read:,} were read, {prepared.duplicates:,} of them duplicates; a hash of its "
                "content decides on a record's split",
                fix="use more records or another share; --val-share 0 or --test-share 0 leaves a split out",
            )


# ---------------------------------------------------------------------------------------------------- files


def line_of(row: RecordLine) -> str:
    """A record as a line of JSON.

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
    text.encode()  # fails on half a surrogate pair, which is no UTF-8
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} can't be written as JSON")


def existing_files(folder: Path, *, force: bool) -> list[Path]:
    """Files of a data set that exists in the folder.

    Raises:
        UserError: there are such files, and `force` is False.
    """
    names = (MANIFEST, *(f"{split}.{ending}" for split in SPLITS for ending in FORMATS))
    existing = [folder / name for name in names if (folder / name).exists()]
    if existing and not force:
        raise UserError(
            f"there is a data set in {folder} already",
            path="--out",
            why="it holds " + ", ".join(path.name for path in existing),
            fix="choose another folder, or replace it with --force",
        )
    return existing


def claim(folder: Path, *, force: bool) -> None:
    """Create the folder for a data set; with `force`, the files of an older one are removed.

    Raises:
        UserError: the folder holds a data set and `force` is False, or it can't be written.
    """
    existing = existing_files(folder, force=force)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in existing:
            path.unlink()
    except OSError as error:
        raise UserError(f"{folder} can't be written", path="--out", why=str(error)) from error


def write_jsonl(path: Path, records: Iterable[Record]) -> int:
    """Write one record a line. The file appears complete, or not at all.

    Returns:
        the number of records.
    """
    count = 0
    unfinished = path.with_name(path.name + ".part")
    try:
        with unfinished.open("w", encoding="utf-8", newline="\n") as file:
            for count, record in enumerate(records, 1):
                file.write(line_of(RecordLine(record, str(path), count)) + "\n")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def write_manifest(folder: Path, facts: Mapping[str, Any], files: Mapping[str, tuple[Path, int]]) -> Record:
    """Write the manifest: `facts`, then the name, number of records and sha256 of each file.

    Args:
        files: split -> (path, number of records).
    """
    splits = {
        split: {"file": path.name, "records": count, "sha256": file_sha256(path)}
        for split, (path, count) in files.items()
    }
    manifest = {**facts, "splits": splits}
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder.

    Raises:
        UserError: it is damaged, or a file that it names does not exist.
    """
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        files = {split: folder / str(entry["file"]) for split, entry in manifest["splits"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} can't be read", why=f"{type(error).__name__}: {error}") from error
    for split, file in files.items():
        if not file.is_file():
            raise UserError(f"the file of split '{split}' is gone: {file}", why=f"{path} names it")
    return manifest


def changed(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Names of files whose bytes differ from the manifest's sha256."""
    return [
        entry["file"]
        for entry in manifest["splits"].values()
        if file_sha256(folder / entry["file"]) != entry.get("sha256")
    ]
