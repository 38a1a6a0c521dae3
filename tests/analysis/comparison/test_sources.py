"""How sides are named on the command line, and files that are no evaluation."""

from __future__ import annotations

import json

import numpy as np
import pytest

from coterie.analysis.comparison.sources import Recorded, sides_of
from coterie.core.errors import UserError
from tests.analysis.comparison.records import record, write

ONES = np.ones((4, 1))


def names(*arguments):
    return {
        side.name: [each.label if isinstance(each, Recorded) else each for each in side.sources]
        for side in sides_of(arguments)
    }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c"):
        write(tmp_path / f"{name}.json", ONES)
    for run in ("three/seed-0", "three/seed-1", "one"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "config.yaml").write_text("seed: 0\n")
    return tmp_path


def test_an_argument_is_a_side(folder):
    assert names("a.json", "b.json") == {"a": ["a.json"], "b": ["b.json"]}
    assert names("A=a.json,b.json", "c.json") == {"A": ["a.json", "b.json"], "c": ["c.json"]}
    assert names("one", "one@3") == {"one": ["one"], "one@3": ["one@3"]}
    assert names("grpo=three", "one@best")["grpo"] == ["three/seed-0", "three/seed-1"]
    assert names("three", "one")["three"] == ["three/seed-0", "three/seed-1"]
    assert names("x=three/seed-*", "y=[ab].json") == {
        "x": ["three/seed-0", "three/seed-1"],
        "y": ["a.json", "b.json"],
    }
    assert names({"x": ["a.json", "b.json"], "y": "c.json"}) == {"x": ["a.json", "b.json"], "y": ["c.json"]}
    assert names("plan_path", "a.json")["plan_path"] == ["plan_path"], "a recipe's untrained team"


def test_a_name_with_an_equals_sign_is_a_path_where_it_is_one(folder):
    write(folder / "lr=1.json", ONES)
    assert names("lr=1.json", "a.json") == {"lr=1": ["lr=1.json"], "a": ["a.json"]}


def test_equal_last_parts_keep_their_paths(folder):
    (folder / "sub").mkdir()
    write(folder / "sub" / "a.json", ONES)
    assert set(names("a.json", "sub/a.json")) == {"a.json", "sub/a.json"}


def test_a_file_of_several_evaluations_is_as_many_sides(folder):
    several = [{"source": name, **record(ONES)} for name in ("runs/x", "runs/y")]
    (folder / "both.json").write_text(json.dumps({"evaluations": several}))
    assert names("both.json") == {"x": ["runs/x"], "y": ["runs/y"]}
    assert names("both=both.json", "a.json")["both"] == ["runs/x", "runs/y"], "named, they are its seeds"


@pytest.mark.parametrize(
    "more",
    [
        {"per_task": {"a": [float("nan")]}},
        {"per_task": {"a": [10**400]}},
        {"per_task": {"a": [True]}},
        {"outcomes": 5},
        {"outcomes": {"turns": [1]}},
        {"outcomes": {"turns": {"a": [float("inf")]}}},
        {"strata": [1]},
        {"strata": {"a": 1}},
        {"contents": {"a": None}},
        {"files": {"env.path": 3}},
        {"seed": "x"},
        {"run_seed": 0.5},
        {"split": 3},
        {"configuration": []},
        {"samples": "4"},
    ],
)
def test_a_file_that_was_changed_by_hand_is_refused(folder, more):
    (folder / "bad.json").write_text(json.dumps(record(ONES, **more)))
    with pytest.raises(UserError, match=r"bad.json is no evaluation") as caught:
        sides_of(["a.json", "bad.json"])
    assert caught.value.why and caught.value.fix


def test_json_without_an_end_is_refused(folder):
    (folder / "deep.json").write_text("[" * 200_000)
    with pytest.raises(UserError, match=r"deep.json is no JSON"):
        sides_of(["a.json", "deep.json"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.json"], "one side only, a"),
        (["A=a.json", "A=b.json"], "two sides are called A"),
        (["a.json", "none.json"], "there is no none.json"),
        (["a.json", "runs/none"], "there is no runs/none"),
        (["a.json", "runs/*"], "nothing matches 'runs/*'"),
        (["a.json", "empty"], "empty is no run folder"),
        (["a.json", "B="], "names no run"),
        (["a.json", "bad.json"], "bad.json is no JSON"),
        (["a.json", "list.json"], "it has no entry `success`"),
        (["a.json", "printed.json"], "which --out writes and --json doesn't print"),
        (["a.json", "texts.json"], "the values of task 'test-0' in per_task are no list of numbers"),
    ],
)
def test_what_names_nothing_to_compare(folder, arguments, message):
    (folder / "empty").mkdir()
    (folder / "bad.json").write_text("{")
    (folder / "list.json").write_text("[1]")
    whole = record(ONES)
    (folder / "printed.json").write_text(json.dumps({k: v for k, v in whole.items() if k != "per_task"}))
    (folder / "texts.json").write_text(json.dumps({**whole, "per_task": {"test-0": ["1"]}}))
    with pytest.raises(UserError) as caught:
        sides_of(arguments)
    assert message in str(caught.value) and "fix:" in str(caught.value)
