"""Wrong files, answers and draws of `math`: what is refused, and what is told."""

from __future__ import annotations

import json
import logging

import pytest

from coterie.core.errors import ConfigError, DataError, UserError
from tests.plugins.envs.math.test_records import env_of, problems, table

TRAIN = problems(20)


def warnings(caplog, env, split):
    with caplog.at_level(logging.WARNING):
        env.tasks(split, 0)
    return caplog.text


# ---- draws


@pytest.mark.parametrize("split", ["val", "test"])
@pytest.mark.parametrize("count", [1, 5])
def test_an_evaluated_split_smaller_than_its_draw_is_refused_with_train(tmp_path, split, count):
    """`env.val.file` replaces the file of a recipe and inherits its draw; nothing may be evaluated yet."""
    small = table(tmp_path / "small.json", problems(count, 50), draw=100)
    env = env_of(train=table(tmp_path / "train.json", TRAIN), **{split: small})
    with pytest.raises(ConfigError, match=f"has {count} problems") as caught:
        env.tasks("train", 0)
    assert caught.value.path == (f"env.{split}.draw" if count else f"env.{split}")


def test_too_large_a_draw_is_the_setting_that_is_named(tmp_path):
    with pytest.raises(ConfigError, match="fewer than draw: 6") as caught:
        env_of(train=table(tmp_path / "train.json", problems(5), draw=6)).tasks("train", 0)
    assert caught.value.path == "env.train.draw" and "env.train.draw=null" in caught.value.fix


# ---- files


def test_a_folder_is_no_file_and_its_files_are_named(tmp_path):
    folder = tmp_path / "mine"
    (folder / "deeper").mkdir(parents=True)
    (folder / "train.json").write_text("[]")
    (folder / "val.json").write_text("[]")
    with pytest.raises(ConfigError, match="is a folder, not a file") as caught:
        env_of(train={"file": str(folder)}).tasks("train", 0)
    assert caught.value.path == "env.train.file" and caught.value.why == "its files: train.json, val.json"


@pytest.mark.parametrize(("name", "what"), [("no.json", "no such file"), ("bad.json.gz", "can't be read")])
def test_a_file_that_cannot_be_read_names_its_setting(tmp_path, name, what):
    (tmp_path / "bad.json.gz").write_bytes(b"no gzip")
    with pytest.raises(UserError, match=what) as caught:
        env_of(val={"file": str(tmp_path / name)}).tasks("val", 0)
    assert caught.value.path == "env.val.file"


# ---- answers


@pytest.mark.parametrize("answer", [float("nan"), float("inf"), -float("inf"), ["2", float("nan")]])
@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_what_is_no_number_is_no_answer(tmp_path, answer, ending):
    records = [*problems(1), {"problem": "1 + 1?", "answer": answer}]
    with pytest.raises(DataError, match=rf"data\.{ending}, line \d+, field 'answer': is no answer") as caught:
        env_of(val=table(tmp_path / f"data.{ending}", records)).tasks("val", 0)
    assert "NaN" in caught.value.fix and caught.value.line == (2 if ending == "jsonl" else 7)


def test_two_answers_of_one_problem_are_told_with_the_first(tmp_path, caplog):
    records = [
        {"id": "a", "problem": "Find $x$.", "answer": "42"},
        {"id": "b", "problem": "1 + 1?", "answer": "2"},
        {"id": "c", "problem": "find x", "answer": "43"},
        {"id": "d", "problem": "find  x", "answer": "44"},
        {"id": "e", "problem": "2 + 2?", "answer": "4"},
        {"id": "f", "problem": "2 + 2", "answer": "5"},
    ]
    text = warnings(caplog, env_of(val=table(tmp_path / "val.json", records)), "val")
    assert "env.val: 2 problems have more than one answer, such as 42 (val-a) and 43 (val-c)" in text


@pytest.mark.parametrize("answers", [("2", "2.0"), ("7", "007"), (r"\frac{1}{2}", r"$\dfrac{1}{2}$")])
def test_an_answer_written_in_another_way_is_the_same(tmp_path, caplog, answers):
    records = [{"problem": "Find $x$.", "answer": answer} for answer in answers]
    env = env_of(val=table(tmp_path / "val.json", records))
    text = warnings(caplog, env, "val")
    assert "more than one answer" not in text
    assert "env.val: 1 of 2 problems repeat another's content" in text, "under an id of their own"
    first, second = (env.place(task) for task in env.tasks("val", 0))
    assert f"{second} (= {first})" in text and second.startswith(f"{tmp_path / 'val.json'}:")


def test_another_answer_in_an_evaluated_split_is_told(tmp_path, caplog):
    wrong = {**TRAIN[3], "answer": "999"}
    env = env_of(
        train=table(tmp_path / "train.json", TRAIN), val=table(tmp_path / "val.json", [wrong, TRAIN[4]])
    )
    text = warnings(caplog, env, "train")
    assert "2 of 20 train problems" in text
    assert "1 of them have another answer in train, such as 4 (train-p3) and 999 (val-p3)" in text


def test_a_problem_of_test_that_has_another_answer_in_val_says_both(tmp_path):
    env = env_of(
        val=table(tmp_path / "val.json", TRAIN[:3]),
        test=table(tmp_path / "test.json", [{**TRAIN[1], "answer": "0"}]),
    )
    with pytest.raises(ConfigError, match="is also in val") as caught:
        env.tasks("test", 0)
    assert caught.value.why == "two answers: 2 (val-p1) and 0 (test-p1)"


# ---- text


def test_half_a_surrogate_pair_is_refused_with_its_line(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps(TRAIN[0]) + "\n" + json.dumps({"problem": "1 \ud800 1?", "answer": "2"}))
    with pytest.raises(DataError, match="half a surrogate pair") as caught:
        env_of(val={"file": str(file)}).tasks("val", 0)
    assert (caught.value.line, caught.value.field) == (2, "problem")
