"""Sudoku's tasks as records: what is written is read again, and what is no puzzle is refused."""

from __future__ import annotations

import json

import pytest

from coterie.core.errors import ConfigError
from coterie.plugins.envs.sudoku import Sudoku
from coterie.testing import build
from tests.plugins.envs.sudokus import EASY, puzzle
from tests.plugins.support import make

ROWS = [[int(mark) if mark != "." else 0 for mark in row] for row in EASY]


@pytest.mark.parametrize("size", [4, 9])
def test_a_record_is_the_task(size):
    env = make(Sudoku, size=size)
    for index in range(5):
        task = env.tasks("test", 1)[index]
        record = json.loads(json.dumps(env.record(task)))
        assert env.task_of(record, task.id) == task
        del record["solution"]
        assert env.task_of({**record, "id": "mine", "note": 3}, "x").payload == task.payload


def test_fingerprints_and_pictures():
    env = make(Sudoku)
    task = env.task_of({"clues": ROWS}, "t")
    assert task.payload == puzzle(*EASY)
    assert env.fingerprints(task) == {
        "content": "1 2 . . 3 4 . 2 . . 4 3 . 3 2 1",
        "solution": "1 2 3 4 3 4 1 2 2 1 4 3 4 3 2 1",
    }
    assert env.picture(task) == "1 2 | . .\n3 4 | . 2\n----+----\n. . | 4 3\n. 3 | 2 1"
    other = env.task_of({"clues": [[1, 2, 3, 4], *ROWS[1:]]}, "t")
    assert env.fingerprints(other)["solution"] == env.fingerprints(task)["solution"]
    assert env.fingerprints(other)["content"] != env.fingerprints(task)["content"]


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({}, "no field 'clues'"),
        ({"grid": ["S.G"]}, "no field 'clues'"),
        ({"clues": "12.."}, "4 rows of 4 whole numbers"),
        ({"clues": ROWS[:3]}, "4 rows of 4 whole numbers"),
        ({"clues": [[0] * 9] * 9}, "4 rows of 4 whole numbers"),
        ({"clues": [["1", 2, 0, 0], *ROWS[1:]]}, "4 rows of 4 whole numbers"),
        ({"clues": [[5, 2, 0, 0], *ROWS[1:]]}, "4 rows of 4 whole numbers"),
        ({"clues": [[True, 2, 0, 0], *ROWS[1:]]}, "4 rows of 4 whole numbers"),
        ({"clues": [[0] * 4] * 4}, "several solutions"),
        ({"clues": [[1, 1, 0, 0], *ROWS[1:]]}, "no solution"),
        ({"clues": [[1, 2, 4, 0], *ROWS[1:]]}, "no solution"),
        (
            {"clues": [[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]},
            "no cell of the clues is empty",
        ),
        (
            {"clues": ROWS, "solution": [[1, 2, 4, 3], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]},
            "not the sol",
        ),
    ],
)
def test_what_is_no_puzzle_is_refused(record, says):
    with pytest.raises(ValueError, match=says):
        make(Sudoku).task_of(record, "t")


def test_tasks_of_a_file_are_played_instead(tmp_path):
    generated = make(Sudoku)
    tables = {}
    for split in ("train", "val", "test"):
        tables[split] = str(tmp_path / f"{split}.jsonl")
        tasks = [generated.tasks(split, 5)[index] for index in range(3)]
        (tmp_path / f"{split}.jsonl").write_text(
            "".join(json.dumps(generated.record(t)) + "\n" for t in tasks)
        )
    env = build("environment", {"type": "sudoku"}, data={"type": "jsonl", **tables})
    source = env.tasks("val", 0)
    assert len(source) == 3 and source[1] == generated.tasks("val", 5)[1] and source[1].id == "val-1"
    large = build("environment", {"type": "sudoku", "size": 9}, data={"type": "jsonl", **tables})
    with pytest.raises(ConfigError, match="no task of this game"):
        large.tasks("val", 0)[0]
