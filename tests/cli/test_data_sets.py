"""`coterie data prepare NAME`: known sets as files that our environments read."""

from __future__ import annotations

import json

import pytest

from coterie.data.sources import known_sets, records_of_set
from tests.backends.data.sets.test_sets import humaneval, written
from tests.cli.support import coterie
from tests.cli.test_data import output, read

ROWS = {
    **dict.fromkeys(("humaneval", "coop_humaneval"), humaneval),
    "mbpp": lambda i: {
        "task_id": i, "prompt": f"Add {i}.", "code": f"def add{i}(x):\n    return x + {i}\n",
        "test_list": [f"assert add{i}(1) == {i + 1}"], "test_imports": [],
    },
    "apps": lambda i: {
        "problem_id": i, "question": f"Print {i}.", "solutions": json.dumps([f"print({i})"]),
        "input_output": json.dumps({"inputs": [""], "outputs": [f"{i}\n"]}), "difficulty": "introductory",
    },
    "code_contests": lambda i: {
        "name": f"c{i}", "description": f"Print {i}.", "public_tests": {"input": [""], "output": [f"{i}\n"]},
        "private_tests": {}, "generated_tests": {}, "solutions": {}, "difficulty": 1,
    },
    "live_code_bench": lambda i: {
        "question_id": str(i), "question_title": "t", "question_content": f"Print {i}.", "starter_code": "",
        "public_test_cases": json.dumps([{"input": "", "output": f"{i}\n", "testtype": "stdin"}]),
        "private_test_cases": "", "difficulty": "easy", "metadata": "{}",
    },
    "tldr": lambda i: {"prompt": f"A post {i}.", "completion": "short"},
    "arxiv": lambda i: {"abstract_text": f"We show {i}.", "article_id": str(i)},
}  # fmt: skip
CHOSEN = ("train=test[:5]", "val=test[5:7]", "test=test[7:]")


def test_every_set_is_known():
    shipped = {"cooperative", "posts", "sums"}
    assert set(known_sets()) == {*ROWS, *shipped}


@pytest.mark.parametrize("name", ROWS)
def test_a_set_is_written_and_read_back(tmp_path, name):
    make = ROWS[name]
    rows = [make(i) for i in range(9)]
    file = written(tmp_path, rows)
    manifest = output("prepare", name, f"file={file}", *CHOSEN, "-o", tmp_path / "out")
    assert {split: entry["records"] for split, entry in manifest["splits"].items()} == {
        "train": 5, "val": 2, "test": 2
    }  # fmt: skip
    direct, notes = records_of_set(
        name, {"file": str(file), **dict(setting.split("=", 1) for setting in CHOSEN)}
    )
    assert notes == []
    for split, records in direct.items():
        assert read(tmp_path / "out" / f"{split}.jsonl") == json.loads(json.dumps(records))
    prepared = {"type": "jsonl", **{split: str(tmp_path / "out" / f"{split}.jsonl") for split in direct}}
    assert manifest["paste"] == {"data": prepared}


def test_our_problems_are_written_and_played_from_their_file(tmp_path):
    done = coterie("data", "prepare", "cooperative", "-o", tmp_path / "out")
    assert done.exit_code == 0 and "train" in done.stdout
    files = {
        split: f"data.{split}={tmp_path / 'out' / f'{split}.jsonl'}" for split in ("train", "val", "test")
    }
    shown = coterie("data", "show", "magrpo_cooperative", "data.type=jsonl", *files.values(), "--tasks", "1")
    assert shown.exit_code == 0 and "vowel_heavy" in shown.stdout, shown.output


def test_a_split_that_nobody_chose_is_noted(tmp_path):
    file = written(tmp_path, [humaneval(i) for i in range(4)])
    done = output("prepare", "humaneval", f"file={file}", "train=test[:3]", "-o", tmp_path / "out")
    assert list(done["splits"]) == ["train"] and len(done["notes"]) == 2


@pytest.mark.parametrize(("arguments", "message"), [
    (("--key", "prompt"), "--key: 'humaneval' is a known set"),
    (("--val-share", "0.2"), "--val-share: 'humaneval' is a known set"),
    (("--keep-splits",), "--keep-splits: 'humaneval' is a known set"),
    (("files=x",), "unknown key 'files'"),
    (("file=nowhere.jsonl",), "no such file: nowhere.jsonl"),
    (("train=test[",), "train"),
    (("nothing",), "'nothing' is no override"),
])  # fmt: skip
def test_what_a_known_set_does_not_take_is_refused_and_nothing_is_written(tmp_path, arguments, message):
    done = coterie("data", "prepare", "humaneval", *arguments, "-o", tmp_path / "out")
    assert done.exit_code == 2 and message in done.output, done.output
    assert not (tmp_path / "out").exists()


def test_settings_are_for_known_sets(tmp_path):
    file = written(tmp_path, [humaneval(0)])
    done = coterie("data", "prepare", file, "train=test[:3]", "-o", tmp_path / "out")
    assert done.exit_code == 2 and "takes no settings" in done.output


def test_an_existing_data_set_is_kept(tmp_path):
    for options, code in (((), 0), ((), 2), (("--force",), 0)):
        done = coterie("data", "prepare", "cooperative", "-o", tmp_path / "out", *options)
        assert done.exit_code == code, done.output


@pytest.mark.parametrize(("name", "meant"), [("humanevl", "humaneval"), ("code_contest", "code_contests")])
def test_a_misspelt_name_is_not_looked_for_on_the_hub(tmp_path, name, meant):
    done = coterie("data", "prepare", name, "-o", tmp_path / "out")
    assert done.exit_code == 2 and f"did you mean '{meant}'?" in done.output


def test_what_is_written_is_what_the_source_gives(tmp_path):
    output("prepare", "cooperative", "-o", tmp_path / "out")
    for split, records in records_of_set("cooperative", {})[0].items():
        assert read(tmp_path / "out" / f"{split}.jsonl") == records


def test_an_empty_name_is_refused(tmp_path):
    done = coterie("data", "prepare", "", "-o", str(tmp_path / "out"))
    assert done.exit_code == 2 and "SOURCE is empty" in done.stderr and "Traceback" not in done.output
