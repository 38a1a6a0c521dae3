"""The data source `ds_pack`: forms of packs, where their files are, and what is missing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.compose.strata import metadata_of, mix
from coterie.core.errors import ConfigError, DataError, UserError
from coterie.testing import build, check_data_source, coterie_run

FILES = ("data_resplit/{}/train.csv", "data_resplit/{}/test.csv", "answers/{}/test_answer.csv")


def record(name: str, **metadata: Any) -> dict[str, Any]:
    """A record as MAPPA's files have it, with short paths."""
    places = {
        "train_file": FILES[0].format(name),
        "test_file": FILES[1].format(name),
        "answer_dir": f"answers/{name}",
    }
    table = {"task_id": name, "task_type": "data_modeling", "data_type": "regression", **places, "url": ""}
    return {"prompt": f"Predict {name}.", "answer": None, "metadata": {**table, **metadata}}


def make_files(root: Path, *names: str) -> None:
    for name in names:
        for file in FILES:
            (root / file.format(name)).parent.mkdir(parents=True, exist_ok=True)
            (root / file.format(name)).write_text("id,target\n1,2\n")


def write(path: Path, records: Sequence[Any], form: str) -> Path:
    lines = "".join(json.dumps(each) + "\n" for each in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(records, indent=1) if form == "list" else lines)
    return path


def records(split: Any = "train", **settings: Any) -> list[Mapping[str, Any]]:
    return list(build("data_source", {"type": "ds_pack", **settings}).records(split))


@pytest.mark.parametrize(("file", "form"), [("a.jsonl", "lines"), ("a.json", "lines"), ("a.json", "list")])
def test_every_form_of_record_file_gives_absolute_paths_below_the_root(
    tmp_path: Path, file: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_files(tmp_path / "root", "bikes", "titanic")
    path = write(tmp_path / "lists" / file, [record("bikes"), record("titanic", year=2012)], form)
    monkeypatch.chdir(tmp_path)
    for root in (str(tmp_path / "root"), "root"):  # a relative one is of the working folder
        read = records(train=str(path), root=root)
        assert [each["metadata"]["task_id"] for each in read] == ["bikes", "titanic"]
        assert read[1]["metadata"]["year"] == 2012 and read[1]["answer"] is None
        assert read[0]["metadata"]["test_file"] == str(tmp_path / "root" / "data_resplit/bikes/test.csv")
        assert read[0]["metadata"]["answer_dir"] == str(tmp_path / "root" / "answers/bikes")
    path = path.rename(tmp_path / "root" / file)
    assert records(train=str(path)) == read, "by default the root is the folder of the records"
    check_data_source(build("data_source", {"type": "ds_pack", "train": str(path)}))


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_dsbenchs_folder_is_read_as_it_is_unpacked(tmp_path: Path, listed: bool, inner: bool) -> None:
    base = tmp_path / "data" if inner else tmp_path
    names = [f"task-{number}" for number in range(40)]
    make_files(base, *names)
    (base / "task").mkdir()
    for name in names:
        (base / "task" / f"{name}.txt").write_text(f"Predict {name}.\n")
    if listed:
        url = "https://www.kaggle.com/competitions/"
        write(
            tmp_path / "data.json",
            [{"name": name, "url": url + name, "year": 2012} for name in names[::-1]],
            "",
        )
    source = build("data_source", {"type": "ds_pack", "path": str(tmp_path), "val_share": 0.2})
    by_split = {split: source.records(split) for split in ("train", "val", "test")}
    together = [each["metadata"]["task_id"] for read in by_split.values() for each in read]
    assert sorted(together) == sorted(names) and all(by_split.values())
    first = by_split["train"][0]
    assert first["prompt"] == f"Predict {first['metadata']['task_id']}.\n" and first["answer"] is None
    assert (
        Path(first["metadata"]["train_file"]).is_file() and first["metadata"]["task_type"] == "data_modeling"
    )
    assert bool(first["metadata"]["url"]) is listed


def test_a_folder_of_ours_has_its_own_splits(tmp_path: Path) -> None:
    make_files(tmp_path, "bikes", "titanic")
    write(tmp_path / "train.jsonl", [record("bikes")], "lines")
    write(tmp_path / "test.jsonl", [record("titanic")], "lines")
    assert [each["prompt"] for each in records(path=str(tmp_path))] == ["Predict bikes."]
    assert [each["prompt"] for each in records("test", path=str(tmp_path))] == ["Predict titanic."]
    with pytest.raises(ConfigError, match="has no split 'val'"):
        records("val", path=str(tmp_path))


def test_missing_files_are_named_with_their_tasks_where_they_are_looked_for_and_what_helps(
    tmp_path: Path,
) -> None:
    make_files(tmp_path, *(f"task-{number}" for number in range(14)))
    for number in range(1, 13):
        (tmp_path / f"answers/task-{number}/test_answer.csv").unlink()
    (tmp_path / "data_resplit/task-1/train.csv").unlink()
    path = write(tmp_path / "train.jsonl", [record(f"task-{number}") for number in range(14)], "lines")
    with pytest.raises(ConfigError) as error:
        records(train=str(path))
    assert error.value.what == (
        f"13 files of 12 of 14 tasks are missing, the first: {tmp_path}/data_resplit/task-1/train.csv"
    )
    names = ", ".join(f"task-{number}" for number in range(1, 11))
    assert error.value.path.endswith(".root")
    assert error.value.why == f"relative paths start at {tmp_path}; the tasks: {names} and 2 more"
    assert "set root" in error.value.fix
    make_files(tmp_path, *(f"task-{number}" for number in range(1, 12)))
    with pytest.raises(
        ConfigError, match=r"^[^,]*1 file of 1 of 14 tasks is missing, .*task-12/test_answer\.csv"
    ):
        records(train=str(path))


def test_a_run_names_missing_files_before_it_has_a_folder(tmp_path: Path) -> None:
    make_files(tmp_path, "bikes", "titanic")
    write(tmp_path / "train.jsonl", [record("bikes"), record("titanic")], "lines")
    data = {"type": "ds_pack", "path": str(tmp_path)}
    success = "tests.backends.data.test_ds_pack:right"
    env = {"type": "team_task", "data": data, "fields": ["prompt"], "answer_field": None, "success": success}
    table = coterie_run(env=env, order=["one"], schedule={"evaluate_every": 0}).resolved.table
    coterie.train(table, out=tmp_path / "run")
    (tmp_path / "data_resplit/titanic/test.csv").unlink()
    with pytest.raises(
        ConfigError, match=r"env\.data\.root: 1 file of 1 of 2 tasks is missing.*titanic/test\.csv"
    ):
        coterie.train(table, out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def right(record: Any, transcript: Any) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("wrong", "field", "problem"),
    [
        ({"prompt": "Predict."}, "metadata", "is no table: None"),
        ({**record("a"), "prompt": " "}, "prompt", "is no text: ' '"),
        (record("a", test_file=None), "metadata.test_file", "is missing"),
        (record("a", task_id=7), "metadata.task_id", "is no text: 7"),
        (record("bikes"), "metadata.task_id", "is also in line 1"),
    ],
)
def test_a_wrong_record_is_named_with_its_line(tmp_path: Path, wrong: Any, field: str, problem: str) -> None:
    make_files(tmp_path, "a", "bikes")
    path = write(tmp_path / "train.jsonl", [record("bikes"), wrong], "lines")
    with pytest.raises(DataError) as error:
        records(train=str(path))
    assert (error.value.line, error.value.field) == (2, field) and problem in str(error.value)


def test_what_is_no_pack_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no task pack"):
        records(path=str(tmp_path))
    (tmp_path / "data_resplit").mkdir()
    (tmp_path / "data.json").write_text('{"title": "a"}\n')
    with pytest.raises(DataError, match=r"data\.json.*name.*is missing"):
        records(path=str(tmp_path))
    (tmp_path / "data.json").write_text('{"name": "bikes"}\n')
    with pytest.raises(DataError, match=r"the prompt of 'bikes' is missing: .*task/bikes\.txt"):
        records(path=str(tmp_path))
    with pytest.raises(UserError, match="no such file"):
        records(train=str(tmp_path / "none.json"))


@pytest.mark.skipif("COTERIE_TEST_DATA" not in os.environ, reason="needs COTERIE_TEST_DATA")
@pytest.mark.parametrize(("name", "tasks", "classification"), [("train", 64, 30), ("eval", 8, 4)])
def test_mappas_files_load_unchanged(tmp_path: Path, name: str, tasks: int, classification: int) -> None:
    path = Path(os.environ["COTERIE_TEST_DATA"]) / f"dsbench_modeling_{name}.json"
    with pytest.raises(ConfigError, match=rf"{3 * tasks} files of {tasks} of {tasks} tasks are missing"):
        records(train=str(path))
    published = [json.loads(line) for line in path.read_text().splitlines()]
    make_files(tmp_path / "data/DSBench/data", *(each["metadata"]["task_id"] for each in published))
    read = records(train=str(path), root=str(tmp_path))
    assert [each["prompt"] for each in read] == [each["prompt"] for each in published]
    assert mix([metadata_of(each) for each in read]) == {
        "data_type": {"classification": classification, "regression": tasks - classification}
    }
