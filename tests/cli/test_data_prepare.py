"""`coterie data prepare`: splits by content, duplicates, and the source's own splits."""

from __future__ import annotations

import gzip
import json
import random
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import coterie
from tests.cli.test_data import SPLITS, output, questions, read, write


def test_a_file_is_split_and_the_order_of_its_lines_decides_nothing(tmp_path: Path):
    records = [*questions(), {**questions()[3], "id": 999}]
    source = write(tmp_path / "all.jsonl", records)
    arguments = ("--rename", "problem=question", "--key", "question", "--val-share", "0.2")
    done = coterie("data", "prepare", source, "--out", tmp_path / "a", *arguments)
    assert done.exit_code == 0, done.output
    assert "duplicates dropped  1" in done.stdout and "1 of the duplicates differ" in done.stdout
    random.Random(0).shuffle(records)
    with gzip.open(tmp_path / "mixed.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    counts = output("prepare", tmp_path / "mixed.jsonl.gz", "--out", tmp_path / "b", *arguments)["counts"]
    assert counts["read"] == 201 and counts["duplicates_dropped"] == 1
    parts = [read(tmp_path / "a" / f"{split}.jsonl") for split in SPLITS]
    assert sum(map(len, parts)) == 200 and sum(counts[split] for split in SPLITS) == 200
    assert all(set(record) == {"id", "question", "answer"} for part in parts for record in part)
    for split in SPLITS:
        assert (tmp_path / "a" / f"{split}.jsonl").read_bytes() == (
            tmp_path / "b" / f"{split}.jsonl"
        ).read_bytes()
    result = output("leaks", tmp_path / "a")
    assert not result["leaking"] and not result["notes"], "a folder's keys are known"


def test_a_source_keeps_its_test_split_and_train_is_cleaned_of_it(tmp_path: Path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    write(folder / "train.jsonl", questions(100))
    write(folder / "test.jsonl", questions(30)[19:])
    manifest = output("prepare", folder, "--keep-splits", "--out", tmp_path / "out")
    counts = manifest["counts"]
    assert counts["dropped_from_train_being_in_test"] == counts["test"] == 11
    assert manifest["kept_splits"] == ["test"] and manifest["test_share"] == 0
    assert len(read(tmp_path / "out" / "train.jsonl") + read(tmp_path / "out" / "val.jsonl")) == 89
    without = output("prepare", folder, "--out", tmp_path / "other")
    assert without["counts"]["read"] == 100 and "not read" in without["notes"][0]


def test_a_data_set_of_the_hub_is_read_by_its_own_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls = []
    parts = {"train": questions(100), "validation": questions(10), "test": questions(20)[10:]}

    def load_dataset(name: str, subset: str, *, split: str, revision: str) -> list[dict[str, Any]]:
        calls.append((name, subset, split, revision))
        return parts[split]

    hub = types.SimpleNamespace(
        load_dataset=load_dataset, get_dataset_split_names=lambda name, subset, revision: list(parts)
    )
    monkeypatch.setitem(sys.modules, "datasets", hub)
    arguments = ("openai/gsm8k", "--subset", "main", "--revision", "abc", "--out", tmp_path)
    counts = output("prepare", *arguments, "--keep-splits")["counts"]
    assert {split: counts[split] for split in SPLITS} == {"train": 80, "val": 10, "test": 10}
    assert {call[2] for call in calls} == {*parts} and {(*call[:2], call[3]) for call in calls} == {
        ("openai/gsm8k", "main", "abc")
    }
    calls.clear()
    notes = output("prepare", *arguments, "--force")["notes"]
    assert [call[2] for call in calls] == ["train"] and "validation, test" in notes[0]


PREPARED: list[tuple[tuple[str, ...], str]] = [
    (("--key", "question"), "line 1, field 'question': there is no such field"),
    (("--rename", "x=y"), "line 1, field 'x': there is no such field"),
    (("--rename", "x"), "'x' renames no field"),
    (("--rename", "id=answer"), "field 'answer': it is there"),
    (("--keep-splits",), "it has no splits to keep"),
    (("--subset", "main"), "is no data set of the Hub"),
    (("--val-share", "0.6", "--test-share", "0.5"), "leave nothing for training"),
    (("--limit", "1"), "no record is left for the split"),
]


@pytest.mark.parametrize(("arguments", "message"), PREPARED)
def test_wrong_settings_of_prepare_are_told(tmp_path: Path, arguments: tuple[str, ...], message: str):
    source = write(tmp_path / "a.jsonl", questions(20))
    done = coterie("data", "prepare", source, "--out", tmp_path / "out", *arguments)
    assert done.exit_code == 2 and message in done.stderr and "Traceback" not in done.output
    assert not (tmp_path / "out").exists()
