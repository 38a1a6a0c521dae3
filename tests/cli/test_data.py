"""`coterie data make|prepare|show|leaks`."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from coterie.api.evaluate import evaluate
from coterie.core.config import load
from coterie.core.training.assemble import compose
from tests.cli.support import TABULAR, coterie

SPLITS = ("train", "val", "test")


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def told(*words: object, code: int = 0) -> Any:
    done = coterie("data", *words, "--json")
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "maze data"
    done = coterie("data", "make", TABULAR, "--out", folder, "seed=7")
    assert done.exit_code == 0, done.output
    return folder


# ------------------------------------------------------------------------------------------------------- make


def test_the_manifest_says_what_was_made(made: Path):
    manifest = json.loads((made / "manifest.json").read_text())
    assert manifest["environment"] == load(TABULAR).config.env and manifest["seed"] == 7
    assert {split: about["records"] for split, about in manifest["splits"].items()} == {
        "train": 64, "val": 16, "test": 32,
    }  # fmt: skip
    for split in SPLITS:
        file = made / f"{split}.jsonl"
        assert manifest["splits"][split]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
        assert [one["id"] for one in read(file)[:2]] == [f"{split}-0", f"{split}-1"]


def test_the_printed_lines_play_exactly_the_tasks_that_were_written(made: Path, tmp_path: Path):
    done = coterie("data", "make", TABULAR, "--out", tmp_path / "again", "seed=7")
    pasted = yaml.safe_load(done.stdout.partition("to play exactly these tasks:")[2])
    recipe = yaml.safe_load(TABULAR.read_text())
    recipe["env"] |= pasted["env"]
    generated, frozen = compose(load(TABULAR, overrides=["seed=7"])), compose(load(recipe))
    for split in SPLITS:
        one, other = generated.environment.tasks(split, 7), frozen.environment.tasks(split, 0)
        assert [one[at] for at in range(len(one))] == [other[at] for at in range(len(other))]
    # The same draws too: ids are the same, and with them the seeds.
    results = [evaluate({**recipe, "seed": 7}), evaluate(TABULAR, overrides=["seed=7"])]
    assert results[0].as_dict()["metrics"] == results[1].as_dict()["metrics"]
    assert results[0].success.n == 32


def test_parquet_holds_the_same_tasks(made: Path, tmp_path: Path):
    pytest.importorskip("pyarrow")
    words = (TABULAR, "--out", tmp_path, "seed=7", "--split", "test")
    pasted = told("make", *words, "--format", "parquet")["paste"]["env"]["data"]
    assert pasted == {"type": "parquet", "test": str(tmp_path / "test.parquet")}
    assert [one["record"] for one in told("show", tmp_path / "test.parquet", "--tasks", "99")] == read(
        made / "test.jsonl"
    )
    assert told("leaks", tmp_path)["sizes"] == {"test": 32}


def test_fewer_tasks_than_there_are_or_were_asked_for_are_told(tmp_path: Path):
    notes = told("make", TABULAR, "--out", tmp_path, "env.train_tasks=10_001", "--split", "train")["notes"]
    assert notes == ["train: 10,000 of 10,001 tasks; --tasks sets their number"]
    notes = told("make", TABULAR, "--out", tmp_path, "--force", "--tasks", "40", "--split", "test")["notes"]
    assert "test: 32 tasks, not 40" in notes[0] and "env.test_tasks" in notes[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "test.jsonl"]


def test_an_environment_without_records_is_refused(tmp_path: Path):
    recipe = {**yaml.safe_load(TABULAR.read_text()), **talking(tmp_path)}
    (tmp_path / "talk.yaml").write_text(yaml.safe_dump(recipe))
    done = coterie("data", "make", tmp_path / "talk.yaml", "--out", tmp_path / "out")
    assert done.exit_code == 2 and "it has no record and no task_of" in done.stderr
    assert not (tmp_path / "out").exists()


def talking(folder: Path) -> dict[str, Any]:
    """A team that answers questions: an environment that has none of the optional methods."""
    for split in SPLITS:
        questions = [{"question": f"{split} {number}?", "answer": "yes"} for number in range(5)]
        write(folder / f"{split}.jsonl", questions)
    role = {"type": "template", "policy": "shared", "prompt": "Answer: {{ question }}"}
    return {
        "env": {"type": "team_task", **{split: str(folder / f"{split}.jsonl") for split in SPLITS}},
        "team": {"order": ["a", "b"], "max_turns": 1, "roles": {"a": role, "b": role}},
    }


# ---------------------------------------------------------------------------------------------------- prepare


def questions(count: int = 200) -> list[dict[str, Any]]:
    return [{"id": number, "problem": f"{number} + 1", "answer": number + 1} for number in range(count)]


def test_a_file_is_split_and_the_order_of_its_lines_decides_nothing(tmp_path: Path):
    records = [*questions(), {**questions()[3], "id": 999}]
    source = write(tmp_path / "all.jsonl", records)
    words = ("--rename", "problem=question", "--key", "question", "--val-share", "0.2")
    done = coterie("data", "prepare", source, "--out", tmp_path / "a", *words)
    assert done.exit_code == 0, done.output
    assert "duplicates dropped  1" in done.stdout and "1 of the duplicates differ" in done.stdout
    random.Random(0).shuffle(records)
    with gzip.open(tmp_path / "mixed.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    counts = told("prepare", tmp_path / "mixed.jsonl.gz", "--out", tmp_path / "b", *words)["counts"]
    assert counts["read"] == 201 and counts["duplicates_dropped"] == 1
    parts = [read(tmp_path / "a" / f"{split}.jsonl") for split in SPLITS]
    assert sum(map(len, parts)) == 200 and sum(counts[split] for split in SPLITS) == 200
    assert all(set(one) == {"id", "question", "answer"} for part in parts for one in part)
    for split in SPLITS:
        assert (tmp_path / "a" / f"{split}.jsonl").read_bytes() == (
            tmp_path / "b" / f"{split}.jsonl"
        ).read_bytes()
    found = told("leaks", tmp_path / "a")
    assert not found["leaking"] and not found["notes"], "a folder's keys are known"


def test_a_source_keeps_its_test_split_and_train_is_cleaned_of_it(tmp_path: Path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    write(folder / "train.jsonl", questions(100))
    write(folder / "test.jsonl", questions(30)[19:])
    found = told("prepare", folder, "--keep-splits", "--out", tmp_path / "out")
    assert found["counts"]["dropped_from_train_being_in_test"] == 11
    assert found["counts"]["test"] == 11 and found["kept_splits"] == ["test"] and found["test_share"] == 0
    assert len(read(tmp_path / "out" / "train.jsonl") + read(tmp_path / "out" / "val.jsonl")) == 89
    without = told("prepare", folder, "--out", tmp_path / "other")
    assert without["counts"]["read"] == 100 and "not read" in without["notes"][0]


def test_a_data_set_of_the_hub_is_read_by_its_own_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = []
    parts = {"train": questions(100), "validation": questions(10), "test": questions(20)[10:]}

    def load_dataset(name: str, subset: str, *, split: str, revision: str) -> list[dict[str, Any]]:
        asked.append((name, subset, split, revision))
        return parts[split]

    hub = types.SimpleNamespace(
        load_dataset=load_dataset, get_dataset_split_names=lambda name, subset, revision: list(parts)
    )
    monkeypatch.setitem(sys.modules, "datasets", hub)
    words = ("openai/gsm8k", "--subset", "main", "--revision", "abc", "--out", tmp_path)
    counts = told("prepare", *words, "--keep-splits")["counts"]
    assert {split: counts[split] for split in SPLITS} == {"train": 80, "val": 10, "test": 10}
    assert {one[2] for one in asked} == {*parts} and {(*one[:2], one[3]) for one in asked} == {
        ("openai/gsm8k", "main", "abc")
    }
    asked.clear()
    notes = told("prepare", *words, "--force")["notes"]
    assert [one[2] for one in asked] == ["train"] and "validation, test" in notes[0]


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


@pytest.mark.parametrize(("words", "says"), PREPARED)
def test_wrong_settings_of_prepare_are_told(tmp_path: Path, words: tuple[str, ...], says: str):
    source = write(tmp_path / "a.jsonl", questions(20))
    done = coterie("data", "prepare", source, "--out", tmp_path / "out", *words)
    assert done.exit_code == 2 and says in done.stderr and "Traceback" not in done.output
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------------------------------------- wrong sources


@pytest.mark.parametrize(("name", "data", "says"), [
    ("a.jsonl", b'{"a": 1}\n{"a": \n', "a.jsonl, line 2"),
    ("a.jsonl", b"", "the source is empty"),
    ("a.jsonl.gz", b"no gzip", "can't be read"),
    ("a.jsonl.gz", gzip.compress(b'{"a": 1}\n', mtime=0)[:-9], "can't be read"),
    ("a.parquet", b"no parquet", "not readable as Parquet"),
    ("a.csv", b"a,b\n1,2\n", "is no record file"),
])  # fmt: skip
def test_a_source_that_is_no_data_is_told(tmp_path: Path, name: str, data: bytes, says: str):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(data)
    done = coterie("data", "prepare", tmp_path / name, "--out", tmp_path / "out")
    assert done.exit_code == 2 and says in done.stderr and "Traceback" not in done.output


@pytest.mark.parametrize(("words", "says"), [
    (("show", "plan_paht"), "did you mean 'plan_path'"),
    (("show", "none.jsonl"), "no such file"),
    (("show", "TABULAR", "--role", "plannr"), "did you mean 'planner'"),
    (("show", "DATA", "--split", "dev"), "'dev' is not one of"),
    (("show", "DATA", "env.size=4"), "it takes no settings"),
    (("show", "EMPTY"), "holds neither a data set nor a run"),
    (("show", "DATA/test.jsonl", "--role", "planner"), "it has no roles"),
    (("show", "DATA/test.jsonl", "--split", "val"), "is one file"),
    (("leaks", "DATA", "--key", "grid"), "fields are for records"),
    (("leaks", "DATA/test.jsonl", "DATA/val.jsonl", "--key", "q"), "line 1, field 'q'"),
    (("leaks", "DATA/test.jsonl", "DATA/test.jsonl"), "named twice"),
    (("leaks", "TABULAR", "DATA/test.jsonl"), "each must be a record file"),
    (("leaks", "env.size=4"), "nothing is named"),
    (("leaks", "TABULAR", "env.sise=4"), "unknown key 'sise'"),
    (("make", "TABULAR", "--out", "DATA"), "there is a data set in"),
])  # fmt: skip
def test_wrong_words_are_told(made: Path, tmp_path: Path, words: tuple[str, ...], says: str):
    places = {"TABULAR": str(TABULAR), "DATA": str(made), "EMPTY": str(tmp_path)}
    given = [places.get(word, word.replace("DATA", str(made))) for word in words]
    done = coterie("data", *given)
    assert done.exit_code == 2 and says in done.stderr and "Traceback" not in done.output


def test_a_record_of_another_game_is_told_with_its_number(made: Path, tmp_path: Path):
    folder = copied(made, tmp_path)
    change(folder, "val", lambda records: [*records[:2], {"id": "val-2", "grid": ["SG"]}])
    done = coterie("data", "leaks", folder)
    assert done.exit_code == 2 and "record 2 of the val split is no task of this game" in done.stderr
    assert "val.jsonl is not the file that manifest.json describes" in done.stderr


def copied(made: Path, folder: Path) -> Path:
    for path in made.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def change(folder: Path, split: str, how: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    path = folder / f"{split}.jsonl"
    write(path, how(read(path)))


# ------------------------------------------------------------------------------------------------------- show


def test_a_prompt_is_what_the_role_sees_in_play(made: Path, tmp_path: Path):
    done = coterie("data", "show", made, "--role", "executor", "--tasks", "2")
    for one in told("show", made, "--role", "executor", "--tasks", "2"):
        assert "\n".join(one["record"]["grid"]) == one["picture"] and one["picture"] in done.stdout
        assert one["messages"][-1]["content"] in done.stdout
    # The planner's first prompt in a game that was really played is the one that is shown.
    played = coterie("eval", TABULAR, "seed=7", "--tasks", "1", "--show", "1")
    [first] = told("show", made, "--role", "planner", "--tasks", "1")
    assert first["messages"][-1]["content"] in played.stdout


def test_records_are_shown_as_they_are(tmp_path: Path):
    source = write(tmp_path / "a.jsonl", questions(5))
    assert [one["record"] for one in told("show", source, "--tasks", "2")] == questions(2)
    assert '"problem": "0 + 1"' in coterie("data", "show", source).stdout
    assert told("show", tmp_path / "a.jsonl")[1]["id"] == "a.jsonl, line 2"


# ------------------------------------------------------------------------------------------------------ leaks


def grids(count: int, size: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        {"id": number, "grid": ["".join(rng.choices("#.", k=size)) for _ in range(size)]}
        for number in range(count)
    ]


def test_the_leaks_of_published_sets_are_found_as_they_were(tmp_path: Path):
    """Sokoban of PettingLLMs: 11 of 100 test grids are train grids; Sudoku: the test set is the train set."""
    train, test = grids(300, 6, seed=1), grids(100, 6, seed=2)
    for at, number in enumerate(range(4, 100, 9)):
        test[number]["grid"] = train[7 * at]["grid"]
    sokoban = write(tmp_path / "train.jsonl", train), write(tmp_path / "test.jsonl", test)
    found = told("leaks", *sokoban, code=1)
    [shared] = found["shared"]
    assert (shared["kind"], shared["splits"], shared["count"]) == ("content", ["train", "test"], 11)
    assert shared["tasks"] == [11, 11] and shared["examples"][0] == ["line 1", "line 5"]
    assert found["repeats"] == [] and found["sizes"] == {"train": 300, "test": 100}
    sudoku = grids(400, 4, seed=3)
    distinct = len({str(one["grid"]) for one in sudoku})
    files = write(tmp_path / "a.jsonl", sudoku), write(tmp_path / "b.jsonl", sudoku[::-1])
    found = told("leaks", *files, "--key", "grid", code=1)
    assert [(one["count"], one["tasks"]) for one in found["shared"]] == [(distinct, [400, 400])]
    assert [one["tasks"][0] for one in found["repeats"]] == [400 - distinct] * 2
    clean = told("leaks", sokoban[0], write(tmp_path / "c.jsonl", grids(100, 6, seed=4)))
    assert clean["shared"] == [] and not clean["leaking"]


def test_a_planted_leak_between_frozen_splits_is_found_by_the_environments_fingerprints(
    made: Path, tmp_path: Path
):
    folder, planted = copied(made, tmp_path), read(made / "train.jsonl")[5]
    before = told("leaks", folder)
    change(folder, "test", lambda records: [*records, {"id": "test-32", "grid": planted["grid"]}])
    done = coterie("data", "leaks", folder)
    assert done.exit_code == 1 and "leak: compared train 64, val 16, test 33" in done.stdout
    [row] = [line for line in done.stdout.splitlines() if "train (" in line and "test (1 of 33)" in line]
    assert row.split()[:2] == ["content", "1"] and row.endswith("= test-32")
    assert not before["leaking"] and not before["shared"]


def test_a_recipes_splits_share_nothing_and_the_rest_that_is_not_compared_is_told():
    words = (TABULAR, "env.width=2", "env.train_tasks=1_000", "--tasks", "60")
    found = told("leaks", *words)
    assert found["shared"] == [] and found["there"]["train"] == 1_000
    assert {one["kind"] for one in found["repeats"]} == {"content"}, "so small a grid repeats itself"
    done = coterie("data", "leaks", *words)
    assert done.exit_code == 0 and "nothing is shared: compared train 60 of 1,000" in done.stdout


def test_under_a_curriculum_the_train_tasks_are_those_of_its_levels(tmp_path: Path):
    recipe = yaml.safe_load(TABULAR.read_text())
    levels = {"field": "words", "values": [2, 3], "promote_at": 0.5}
    env = {"type": "tests.core.training.test_curriculum:Guess", "curriculum": levels}
    team = {
        "order": ["one"],
        "roles": {"one": {"type": "tests.games:Seat", "policy": "shared"}},
    }
    file = tmp_path / "guess.yaml"
    file.write_text(yaml.safe_dump({**recipe, "env": env, "team": team}))
    found = told("leaks", file, code=1)
    # Of n words there are 2 n tasks in each split, the same in all: 4 and 6 to train on, 10 to test.
    assert found["there"] == {"train": 10, "val": 10, "test": 10}
    assert any("2 levels" in note for note in found["notes"])
    shared = {tuple(one["splits"]): one for one in found["shared"]}
    assert (shared["train", "test"]["count"], shared["train", "test"]["tasks"]) == (6, [10, 6])
    assert shared["train", "test"]["examples"][0] == ["train-0@words=2", "test-0"]


def test_the_files_of_a_recipe_with_a_curriculum_are_of_its_target(tmp_path: Path):
    recipe = yaml.safe_load(TABULAR.read_text())
    levels = {"field": "size", "values": [2, recipe["env"]["size"]], "promote_at": 0.5}
    recipe["env"]["curriculum"] = levels
    (tmp_path / "levels.yaml").write_text(yaml.safe_dump(recipe))
    pasted = told("make", tmp_path / "levels.yaml", "--out", tmp_path / "out")["paste"]
    run = compose(load({**recipe, "env": {**recipe["env"], **pasted["env"]}}))
    assert run.curriculum is None and len(run.environment.tasks("train", 0)) == 64
    assert told("leaks", tmp_path / "out")["sizes"] == {"train": 64, "val": 16, "test": 32}


def test_an_environment_without_fingerprints_is_compared_by_payload(tmp_path: Path):
    recipe = {**yaml.safe_load(TABULAR.read_text()), **talking(tmp_path)}
    (tmp_path / "talk.yaml").write_text(yaml.safe_dump(recipe))
    found = told("leaks", tmp_path / "talk.yaml")
    assert found["sizes"] == dict.fromkeys(SPLITS, 5) and "gives no fingerprints" in found["notes"][0]
    shown = told("show", tmp_path / "talk.yaml", "--role", "a", "--tasks", "1")
    assert shown[0]["record"]["question"] == "test 0?"
    assert shown[0]["messages"][-1]["content"] == "Answer: test 0?"


@pytest.mark.parametrize("game", ["sudoku", "sokoban"])
def test_every_games_files_play_its_tasks_and_share_nothing(game: str, tmp_path: Path):
    recipe = yaml.safe_load(TABULAR.read_text())
    solver = {"order": ["solver"], "roles": {"solver": {"type": f"{game}_solver", "policy": "shared"}}}
    recipe |= {"env": {"type": game}, "team": {**recipe["team"], **solver}}
    (tmp_path / "game.yaml").write_text(yaml.safe_dump(recipe))
    pasted = told("make", tmp_path / "game.yaml", "--tasks", "20", "--out", tmp_path / "out")["paste"]
    generated = compose(load(recipe)).environment
    frozen = compose(load({**recipe, "env": {**recipe["env"], **pasted["env"]}})).environment
    for split in SPLITS:
        one, other = generated.tasks(split, 0), frozen.tasks(split, 9)
        assert [one[at] for at in range(20)] == [other[at] for at in range(len(other))]
    assert not told("leaks", tmp_path / "out")["leaking"]
    [shown] = told("show", tmp_path / "out", "--role", "solver", "--tasks", "1")
    assert shown["picture"] and shown["messages"]


def test_a_solution_that_is_shared_by_two_problems_is_a_leak(tmp_path: Path):
    recipe = yaml.safe_load(TABULAR.read_text())
    solver = {"order": ["solver"], "roles": {"solver": {"type": "sudoku_solver", "policy": "shared"}}}
    recipe |= {"env": {"type": "sudoku"}, "team": {**recipe["team"], **solver}}
    (tmp_path / "game.yaml").write_text(yaml.safe_dump(recipe))
    told("make", tmp_path / "game.yaml", "--tasks", "10", "--out", tmp_path / "out")
    easier = read(tmp_path / "out" / "train.jsonl")[0]
    row, column = next(
        (r, c) for r, line in enumerate(easier["clues"]) for c, digit in enumerate(line) if digit == 0
    )
    easier["clues"][row][column] = easier["solution"][row][column]
    change(tmp_path / "out", "test", lambda records: [*records, {**easier, "id": "test-10"}])
    [shared] = told("leaks", tmp_path / "out", code=1)["shared"]
    assert (shared["kind"], shared["splits"], shared["tasks"][1]) == ("solution", ["train", "test"], 1)
