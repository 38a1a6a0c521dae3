"""Synthetic packs of data-science tasks: what `coterie data make ds-pack` writes.

A pack is a folder: a file of records for each split, `data/TASK` with what roles see (train.csv, test.csv,
sample_submission.csv), and `answers/TASK` with what they don't (test_answer.csv, and the predictions of the
reference in reference.csv). The data source `ds_pack` reads it. Same seed, same bytes.
"""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.errors import UserError
from coterie.core.types.seeding import generator
from coterie.core.types.splits import Record, Split
from coterie.data.ds_solutions import Array
from coterie.data.ds_tables import FAMILIES, TRAIN, Family, Table
from coterie.data.task_files import (
    MANIFEST,
    claim,
    existing_files,
    read_manifest,
    write_jsonl,
    write_manifest,
)

NAME = "ds-pack"
"""What `coterie data make` calls it."""
TASKS = 18
"""Tasks of a split by default: two of each family."""
DATA, ANSWERS = "data", "answers"
"""The folders of what roles see, and of what they don't."""


def write_pack(
    folder: Path, splits: Sequence[Split], tasks: int, seed: int, *, force: bool, facts: Record
) -> tuple[Record, dict[Split, list[Record]]]:
    """Write a pack.

    Args:
        tasks: of each split. Families take turns, so that nine in a row are one of each.
        force: replace the data set that is in the folder.
        facts: further entries of the manifest.

    Returns:
        the manifest, and the records by split.

    Raises:
        UserError: the folder holds a data set and `force` is False, or can't be written.
    """
    existing_files(folder, force=force)
    _remove_tasks(folder)
    claim(folder, force=force)
    records: dict[Split, list[Record]] = {}
    try:
        for split in splits:
            records[split] = [_write_task(folder, split, number, seed) for number in range(tasks)]
        files: dict[str, tuple[Path, int]] = {split: (folder / f"{split}.jsonl", tasks) for split in splits}
        for split, each in records.items():
            write_jsonl(files[split][0], each)
        names = [record["metadata"]["task_id"] for each in records.values() for record in each]
        return write_manifest(folder, {**facts, "seed": seed, "tasks": names}, files), records
    except OSError as error:
        raise UserError(f"{folder} can't be written", path="--out", why=str(error)) from error


def _remove_tasks(folder: Path) -> None:
    """Remove the tasks of the pack that is in the folder; other folders beside them stay."""
    if not (folder / MANIFEST).is_file():
        return
    for name in read_manifest(folder).get("tasks", []):
        for place in (folder / DATA / str(name), folder / ANSWERS / str(name)):
            if place.parent.parent == folder:
                shutil.rmtree(place, ignore_errors=True)


def _write_task(folder: Path, split: Split, number: int, seed: int) -> Record:
    """Write the files of a task; its record, with paths relative to the folder."""
    family = FAMILIES[number % len(FAMILIES)]
    name = f"{split}-{number:03d}-{family.name}"
    table = family.draw(generator(seed, name, "ds pack"))
    constant, guess = family.baseline(table), family.reference(table)
    data, answers = folder / DATA / name, folder / ANSWERS / name
    (train, targets), (test, truth) = table.rows("train"), table.rows("test")
    ids = np.arange(len(table.target))
    _write(data / "train.csv", {"id": ids[:TRAIN], **train, "target": targets})
    _write(data / "test.csv", {"id": ids[TRAIN:], **test})
    _write(data / "sample_submission.csv", {"id": ids[TRAIN:], "target": constant})
    _write(answers / "test_answer.csv", {"id": ids[TRAIN:], "target": truth})
    _write(answers / "reference.csv", {"id": ids[TRAIN:], "target": guess})
    of_labels = table.target.dtype.kind == "U"
    return {
        "prompt": _prompt(name, family, table),
        "answer": None,
        "metadata": {
            "task_id": name,
            "task_type": "data_modeling",
            "data_type": family.data_type,
            "family": family.name,
            "metric": family.metric,
            "id_column": "id",
            "targets": ["target"],
            **({"labels": np.unique(table.target).tolist()} if of_labels else {}),
            "baseline": family.score(table, constant),
            "reference": family.score(table, guess),
            "solutions": {"baseline": family.constant_is, "reference": family.reference_is},
            "train_file": f"{DATA}/{name}/train.csv",
            "test_file": f"{DATA}/{name}/test.csv",
            "answer_dir": f"{ANSWERS}/{name}",
            "url": None,
        },
    }


def _prompt(name: str, family: Family, table: Table) -> str:
    (train, targets), (test, _) = table.rows("train"), table.rows("test")
    columns = ", ".join(f"`{name}`" for name in train)
    return f"""Description
A synthetic data set, {name}. {family.story} Predict it from the other columns.

Evaluation
Submissions are evaluated on {family.evaluation}

Submission File
For each id of the test set, predict the target. The file has a header and this format:
id,target
{_lines({"id": np.arange(TRAIN, TRAIN + 3), "target": family.baseline(table)[:3]})}etc.

Dataset Description
- train.csv: {len(targets)} rows with `id`, {columns} and `target`
- test.csv: {len(next(iter(test.values())))} rows without `target`
"""


def _write(path: Path, columns: Mapping[str, Array]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(",".join(columns) + "\n" + _lines(columns), encoding="utf-8", newline="\n")


def _lines(columns: Mapping[str, Array]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(zip(*map(_cells, columns.values()), strict=True))
    return text.getvalue()


def _cells(values: Array) -> Iterator[Any]:
    """The cells of a column; the shortest text that is read as the same number; empty: missing."""
    for value in values.tolist():
        yield "" if isinstance(value, float) and np.isnan(value) else value
