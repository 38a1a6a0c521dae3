"""What `coterie data` says of two answers to one problem, of JSON lists, and of splits that can't be read."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.cli.support import TABULAR, coterie
from tests.cli.test_data import output, questions, talking, write

YES, NO = ({"question": "same?", "answer": answer} for answer in ("yes", "no"))
DIFFER = "1 of the repeated contents have different "


def test_records_of_one_key_that_differ_elsewhere_are_told(tmp_path: Path):
    first, second = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    write(first, [{**NO, "question": "else?"}, {"id": 1, **YES}])
    write(second, [{"id": 2, **YES}, NO, NO])
    note = DIFFER + "values in other fields, such as line 2 of train and line 2 of test"
    assert output("leaks", first, second, "--key", "question", code=1)["notes"] == [note]
    assert f"note: {note}" in coterie("data", "leaks", first, second, "--key", "question").stdout
    whole = output("leaks", first, second, code=1)["notes"]
    assert not any("differ" in note for note in whole), "every field is content, but the id"


def test_tasks_with_two_answers_are_told(tmp_path: Path):
    recipe = {**yaml.safe_load(TABULAR.read_text()), **talking(tmp_path)}
    (tmp_path / "talk.yaml").write_text(yaml.safe_dump(recipe))
    assert output("leaks", tmp_path / "talk.yaml")["notes"] == []
    write(tmp_path / "train.jsonl", [YES, YES, {"question": "else?", "answer": "no"}, NO])
    [note] = output("leaks", tmp_path / "talk.yaml")["notes"]
    assert note == DIFFER + "answers, such as train-0 and train-3"


def test_json_lists_are_record_files(tmp_path: Path):
    first, second = tmp_path / "train.json", tmp_path / "test.json"
    first.write_text(json.dumps(questions(9)))
    second.write_text(json.dumps(questions(2), indent=1))
    assert [row["id"] for row in output("show", second)] == ["test.json, line 2", "test.json, line 7"]
    assert output("leaks", first, second, code=1)["sizes"] == {"train": 9, "test": 2}
    assert output("leaks", tmp_path, code=1)["sizes"] == {"train": 9, "test": 2}
    done = coterie(
        "data", "prepare", first, "--out", tmp_path / "out", "--val-share", "0", "--test-share", "0"
    )
    assert done.exit_code == 0, done.output


def test_where_no_split_can_be_read_the_first_says_why(tmp_path: Path):
    train = tmp_path / "train.json"
    train.write_text(json.dumps(questions(3)))
    math = {
        "env": {"type": "math", "train": {"file": str(train), "draw": 4}, "verify": "numbers"},
        "team": {"order": ["reasoner"], "roles": {"reasoner": {"type": "math_reasoner", "policy": "shared"}}},
    }
    (tmp_path / "math.yaml").write_text(yaml.safe_dump({**yaml.safe_load(TABULAR.read_text()), **math}))
    done = coterie("data", "leaks", tmp_path / "math.yaml")
    assert done.exit_code == 2 and "env.train.draw: split 'train' has 3 problems" in done.stderr
