"""`coterie data make|prepare|show|leaks`."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from coterie import Plugin, Task
from coterie.api.evaluate import evaluate
from coterie.compose import compose
from coterie.recipes import load
from coterie.testing.support.toys import ROLE
from tests.cli.support import TABULAR, coterie

SPLITS = ("train", "val", "test")


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def output(*arguments: object, code: int = 0) -> Any:
    done = coterie("data", *arguments, "--json")
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def questions(count: int = 200) -> list[dict[str, Any]]:
    return [{"id": number, "problem": f"{number} + 1", "answer": number + 1} for number in range(count)]


def listed(tasks: Any, count: int | None = None) -> list[Any]:
    """The first `count` tasks; None: all."""
    return [tasks[index] for index in range(len(tasks) if count is None else count)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "maze data"
    done = coterie("data", "make", TABULAR, "--out", folder, "seed=7")
    assert done.exit_code == 0, done.output
    return folder


# ------------------------------------------------------------------------------------------------------- make


def test_the_manifest_says_what_was_made(dataset: Path):
    manifest = json.loads((dataset / "manifest.json").read_text())
    assert manifest["environment"] == load(TABULAR).config.env and manifest["seed"] == 7
    assert {split: about["records"] for split, about in manifest["splits"].items()} == {
        "train": 64, "val": 16, "test": 32,
    }  # fmt: skip
    for split in SPLITS:
        file = dataset / f"{split}.jsonl"
        assert manifest["splits"][split]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
        assert [record["id"] for record in read(file)[:2]] == [f"{split}-0", f"{split}-1"]


def test_the_printed_lines_play_exactly_the_tasks_that_were_written(dataset: Path, tmp_path: Path):
    done = coterie("data", "make", TABULAR, "--out", tmp_path / "again", "seed=7")
    pasted = yaml.safe_load(done.stdout.partition("to play exactly these tasks:")[2])
    recipe = yaml.safe_load(TABULAR.read_text())
    recipe["env"] |= pasted["env"]
    generated, frozen = compose(load(TABULAR, overrides=["seed=7"])), compose(load(recipe))
    for split in SPLITS:
        expected, tasks = generated.environment.tasks(split, 7), frozen.environment.tasks(split, 0)
        assert listed(tasks) == listed(expected)
    # The same draws too: ids are the same, and with them the seeds.
    results = [evaluate({**recipe, "seed": 7}), evaluate(TABULAR, overrides=["seed=7"])]
    assert results[0].as_dict()["metrics"] == results[1].as_dict()["metrics"]
    assert results[0].success.n == 32


def test_parquet_holds_the_same_tasks(dataset: Path, tmp_path: Path):
    pytest.importorskip("pyarrow")
    arguments = (TABULAR, "--out", tmp_path, "seed=7", "--split", "test")
    pasted = output("make", *arguments, "--format", "parquet")["paste"]["env"]["data"]
    assert pasted == {"type": "parquet", "test": str(tmp_path / "test.parquet")}
    assert [task["record"] for task in output("show", tmp_path / "test.parquet", "--tasks", "99")] == read(
        dataset / "test.jsonl"
    )
    assert output("leaks", tmp_path)["sizes"] == {"test": 32}


def test_fewer_tasks_than_there_are_or_were_asked_for_are_told(tmp_path: Path):
    target = (TABULAR, "--out", tmp_path)
    notes = output("make", *target, "env.train_tasks=10_001", "--split", "train")["notes"]
    assert notes == ["train: 10,000 of 10,001 tasks; --tasks sets their number"]
    notes = output("make", *target, "--force", "--tasks", "40", "--split", "test")["notes"]
    assert "test: 32 tasks, not 40" in notes[0] and "env.test_tasks" in notes[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "test.jsonl"]


def test_an_environment_without_records_is_refused(tmp_path: Path):
    recipe = {**yaml.safe_load(TABULAR.read_text()), **talking(tmp_path)}
    (tmp_path / "talk.yaml").write_text(yaml.safe_dump(recipe))
    done = coterie("data", "make", tmp_path / "talk.yaml", "--out", tmp_path / "out")
    assert done.exit_code == 2 and "it lacks `record(task)`" in done.stderr
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


# ---------------------------------------------------------------------------------------------- wrong sources


@pytest.mark.parametrize(("name", "data", "message"), [
    ("a.jsonl", b'{"a": 1}\n{"a": \n', "a.jsonl, line 2"),
    ("a.jsonl", b"", "a.jsonl is empty"),
    ("a.jsonl.gz", b"no gzip", "can't be read"),
    ("a.jsonl.gz", gzip.compress(b'{"a": 1}\n', mtime=0)[:-9], "can't be read"),
    ("a.parquet", b"no parquet", "can't be read as Parquet"),
    ("a.csv", b"a,b\n1,2\n", "is no record file"),
])  # fmt: skip
def test_a_source_that_is_no_data_is_told(tmp_path: Path, name: str, data: bytes, message: str):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(data)
    done = coterie("data", "prepare", tmp_path / name, "--out", tmp_path / "out")
    assert done.exit_code == 2 and message in done.stderr and "Traceback" not in done.output


@pytest.mark.parametrize(("arguments", "message"), [
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
def test_wrong_words_are_told(dataset: Path, tmp_path: Path, arguments: tuple[str, ...], message: str):
    places = {"TABULAR": str(TABULAR), "DATA": str(dataset), "EMPTY": str(tmp_path)}
    given = [places.get(argument, argument.replace("DATA", str(dataset))) for argument in arguments]
    done = coterie("data", *given)
    assert done.exit_code == 2 and message in done.stderr and "Traceback" not in done.output


def test_a_record_of_another_game_is_told_with_its_number(dataset: Path, tmp_path: Path):
    folder = copied(dataset, tmp_path)
    change(folder, "val", lambda records: [*records[:2], {"id": "val-2", "grid": ["SG"]}])
    done = coterie("data", "leaks", folder)
    assert done.exit_code == 2 and "record 2 of the val split is no task of this game" in done.stderr
    assert "val.jsonl is not the file that manifest.json describes" in done.stderr


def copied(dataset: Path, folder: Path) -> Path:
    for path in dataset.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def change(folder: Path, split: str, how: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    path = folder / f"{split}.jsonl"
    write(path, how(read(path)))


# ------------------------------------------------------------------------------------------------------- show


def test_a_prompt_is_what_the_role_sees_in_play(dataset: Path, tmp_path: Path):
    done = coterie("data", "show", dataset, "--role", "executor", "--tasks", "2")
    for task in output("show", dataset, "--role", "executor", "--tasks", "2"):
        assert "\n".join(task["record"]["grid"]) == task["picture"] and task["picture"] in done.stdout
        assert len(task["prompts"]) == 2 and task["end"] in done.stdout
        for prompt in task["prompts"]:
            assert prompt["role"] == "executor" and prompt["messages"][-1]["content"] in done.stdout
    # The planner's first prompt in a game that was really played is the one that is shown.
    played = coterie("eval", TABULAR, "seed=7", "--tasks", "1", "--show", "1")
    [first] = output("show", dataset, "--role", "planner", "--tasks", "1")
    assert first["prompts"][0]["messages"][-1]["content"] in played.stdout


def test_records_are_shown_as_they_are(tmp_path: Path):
    source = write(tmp_path / "a.jsonl", questions(5))
    assert [row["record"] for row in output("show", source, "--tasks", "2")] == questions(2)
    assert '"problem": "0 + 1"' in coterie("data", "show", source).stdout
    assert output("show", tmp_path / "a.jsonl")[1]["id"] == "a.jsonl, line 2"


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
    result = output("leaks", *sokoban, code=1)
    [shared] = result["shared"]
    assert (shared["kind"], shared["splits"], shared["count"]) == ("content", ["train", "test"], 11)
    assert shared["tasks"] == [11, 11] and shared["examples"][0] == ["line 1", "line 5"]
    assert result["repeats"] == [] and result["sizes"] == {"train": 300, "test": 100}
    sudoku = grids(400, 4, seed=3)
    distinct = len({str(record["grid"]) for record in sudoku})
    files = write(tmp_path / "a.jsonl", sudoku), write(tmp_path / "b.jsonl", sudoku[::-1])
    result = output("leaks", *files, "--key", "grid", code=1)
    assert [(leak["count"], leak["tasks"]) for leak in result["shared"]] == [(distinct, [400, 400])]
    assert [leak["tasks"][0] for leak in result["repeats"]] == [400 - distinct] * 2
    clean = output("leaks", sokoban[0], write(tmp_path / "c.jsonl", grids(100, 6, seed=4)))
    assert clean["shared"] == [] and not clean["leaking"]


def test_a_planted_leak_between_frozen_splits_is_found_by_the_environments_fingerprints(
    dataset: Path, tmp_path: Path
):
    folder, planted = copied(dataset, tmp_path), read(dataset / "train.jsonl")[5]
    before = output("leaks", folder)
    change(folder, "test", lambda records: [*records, {"id": "test-32", "grid": planted["grid"]}])
    done = coterie("data", "leaks", folder)
    assert done.exit_code == 1 and "leak: compared train 64, val 16, test 33" in done.stdout
    [row] = [line for line in done.stdout.splitlines() if "train (" in line and "test (1 of 33)" in line]
    assert row.split()[:2] == ["content", "1"] and row.endswith("= test-32")
    assert not before["leaking"] and not before["shared"]


def test_a_recipes_splits_share_nothing_and_the_rest_that_is_not_compared_is_told():
    arguments = (TABULAR, "env.width=2", "env.train_tasks=1_000", "--tasks", "60")
    result = output("leaks", *arguments)
    assert result["shared"] == [] and result["there"]["train"] == 1_000
    assert {leak["kind"] for leak in result["repeats"]} == {"content"}, "so small a grid repeats itself"
    done = coterie("data", "leaks", *arguments)
    assert done.exit_code == 0 and "nothing is shared: compared train 60 of 1,000" in done.stdout


def test_under_a_curriculum_the_train_tasks_are_those_of_its_levels(tmp_path: Path):
    recipe = yaml.safe_load(TABULAR.read_text())
    levels = {"field": "words", "values": [2, 3], "promote_at": 0.5}
    env = {"type": "tests.core.training.test_curriculum:Guess", "curriculum": levels}
    team = {
        "order": ["one"],
        "roles": {"one": {"type": ROLE, "policy": "shared"}},
    }
    file = tmp_path / "guess.yaml"
    file.write_text(yaml.safe_dump({**recipe, "env": env, "team": team}))
    result = output("leaks", file, code=1)
    # Of n words there are 2 n tasks in each split, the same in all: 4 and 6 to train on, 10 to test.
    assert result["there"] == {"train": 10, "val": 10, "test": 10}
    assert any("2 levels" in note for note in result["notes"])
    shared = {tuple(leak["splits"]): leak for leak in result["shared"]}
    assert (shared["train", "test"]["count"], shared["train", "test"]["tasks"]) == (6, [10, 6])
    assert shared["train", "test"]["examples"][0] == ["train-0@words=2", "test-0"]


def test_the_files_of_a_recipe_with_a_curriculum_are_of_its_target(tmp_path: Path):
    recipe = yaml.safe_load(TABULAR.read_text())
    levels = {"field": "size", "values": [2, recipe["env"]["size"]], "promote_at": 0.5}
    recipe["env"]["curriculum"] = levels
    (tmp_path / "levels.yaml").write_text(yaml.safe_dump(recipe))
    pasted = output("make", tmp_path / "levels.yaml", "--out", tmp_path / "out")["paste"]
    run = compose(load({**recipe, "env": {**recipe["env"], **pasted["env"]}}))
    assert run.curriculum is None and len(run.environment.tasks("train", 0)) == 64
    assert output("leaks", tmp_path / "out")["sizes"] == {"train": 64, "val": 16, "test": 32}


def test_a_recipe_of_records_is_compared_by_what_the_roles_see(tmp_path: Path):
    recipe = {**yaml.safe_load(TABULAR.read_text()), **talking(tmp_path)}
    (tmp_path / "talk.yaml").write_text(yaml.safe_dump(recipe))
    result = output("leaks", tmp_path / "talk.yaml")
    assert result["sizes"] == dict.fromkeys(SPLITS, 5) and result["notes"] == []
    shown = output("show", tmp_path / "talk.yaml", "--role", "a", "--tasks", "1")
    assert shown[0]["record"]["question"] == "test 0?"
    assert shown[0]["prompts"][0]["messages"][-1]["content"] == "Answer: test 0?"


def duplicated(folder: Path, name: str) -> Path:
    """A recipe whose train split has three equal questions and another pair; `name` is the field of ids."""
    recipe = {**yaml.safe_load(TABULAR.read_text()), **talking(folder)}
    if name != "id":
        recipe["env"]["id_field"] = name
    questions = ["same?", "else?", "same?", "pair?", "pair?", "same?"]
    records = [
        {name: f"q{number}", "question": question, "answer": "yes"}
        for number, question in enumerate(questions)
    ]
    write(folder / "train.jsonl", records)
    for split in ("val", "test"):
        write(folder / f"{split}.jsonl", [{name: split, "question": f"{split}?", "answer": "yes"}])
    (folder / "talk.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "talk.yaml"


@pytest.mark.parametrize("name", ["key", "id"])
def test_equal_records_within_a_split_are_repeats_whatever_their_ids(name: str, tmp_path: Path):
    recipe = duplicated(tmp_path, name)
    result = output("leaks", recipe)
    first = ("q0", "q2", "q3", "q4") if name == "key" else ("0", "2", "3", "4")
    ids = [f"train-{number}" for number in first]
    [repeat] = result["repeats"]
    assert (repeat["kind"], repeat["splits"], repeat["count"]) == ("content", ["train", "train"], 2)
    assert repeat["tasks"] == [3, 3], "three records beyond the first of their content"
    assert repeat["examples"] == [ids[:2], ids[2:]]
    assert not result["leaking"] and result["shared"] == []
    done = coterie("data", "leaks", recipe)
    assert done.exit_code == 0 and "train (3 more of 6)" in done.stdout
    assert f"{ids[0]} = {ids[1]}; {ids[2]} = {ids[3]}" in done.stdout
    assert output("leaks", tmp_path, "--key", "question")["repeats"][0]["tasks"] == [3, 3]


def test_equal_records_of_two_splits_under_two_ids_are_a_leak(tmp_path: Path):
    """Where no `id_field` is set, the id is a field that roles see, and two such records are not equal."""
    recipe = duplicated(tmp_path, "id")
    write(tmp_path / "test.jsonl", [{"id": "other", "question": "same?", "answer": "yes"}])
    [shared] = output("leaks", recipe, code=1)["shared"]
    assert (shared["kind"], shared["splits"], shared["tasks"]) == ("content", ["train", "test"], [3, 1])


class Riddles(Plugin):
    """An environment without fingerprints, whose payloads hold an id."""

    roles = ()
    components = {"right": "increment"}
    weights = {}

    def tasks(self, split: str, seed: int) -> list[Task]:
        records = [{"id": f"{split}{n}", "riddle": f"{split} {n % 2}"} for n in range(4)]
        payloads = records if split != "val" else [Riddle(**record) for record in records]
        return [Task(id=f"{split}-{n}", payload=payload) for n, payload in enumerate(payloads)]

    def reset(self, task: Task, seed: int) -> Any: ...

    def acting_roles(self, state: Any) -> Any: ...

    def observe(self, state: Any, role: str) -> Any: ...

    def step(self, state: Any, actions: Any, ctx: Any) -> Any: ...

    def outcome(self, state: Any) -> Any: ...


@dataclass(frozen=True)
class Riddle:
    id: str
    riddle: str


def test_the_digest_of_a_payload_leaves_its_id_out(tmp_path: Path):
    recipe = yaml.safe_load(TABULAR.read_text())
    team = {"order": ["one"], "roles": {"one": {"type": ROLE, "policy": "shared"}}}
    file = tmp_path / "riddles.yaml"
    file.write_text(yaml.safe_dump({**recipe, "env": {"type": f"{__name__}:Riddles"}, "team": team}))
    result = output("leaks", file)
    assert [(repeat["splits"][0], repeat["count"], repeat["tasks"][0]) for repeat in result["repeats"]] == [
        (split, 2, 2) for split in SPLITS
    ]
    assert "gives no fingerprints" in result["notes"][0] and "without a field 'id'" in result["notes"][0]


def solver_recipe(game: str, folder: Path) -> tuple[dict[str, Any], Path]:
    """A recipe of a game with one role, as a table and as a file."""
    recipe = yaml.safe_load(TABULAR.read_text())
    solver = {"order": ["solver"], "roles": {"solver": {"type": f"{game}_solver", "policy": "shared"}}}
    recipe |= {"env": {"type": game}, "team": {**recipe["team"], **solver}}
    (folder / "game.yaml").write_text(yaml.safe_dump(recipe))
    return recipe, folder / "game.yaml"


@pytest.mark.parametrize("game", ["sudoku", "sokoban"])
def test_every_games_files_play_its_tasks_and_share_nothing(game: str, tmp_path: Path):
    recipe, file = solver_recipe(game, tmp_path)
    pasted = output("make", file, "--tasks", "20", "--out", tmp_path / "out")["paste"]
    generated = compose(load(recipe)).environment
    frozen = compose(load({**recipe, "env": {**recipe["env"], **pasted["env"]}})).environment
    for split in SPLITS:
        assert listed(frozen.tasks(split, 9)) == listed(generated.tasks(split, 0), 20)
    assert not output("leaks", tmp_path / "out")["leaking"]
    [shown] = output("show", tmp_path / "out", "--role", "solver", "--tasks", "1")
    assert shown["picture"] and shown["prompts"][0]["messages"]


def test_a_solution_that_is_shared_by_two_problems_is_a_leak(tmp_path: Path):
    _, file = solver_recipe("sudoku", tmp_path)
    output("make", file, "--tasks", "10", "--out", tmp_path / "out")
    easier = read(tmp_path / "out" / "train.jsonl")[0]
    row, column = next(
        (r, c) for r, line in enumerate(easier["clues"]) for c, digit in enumerate(line) if digit == 0
    )
    easier["clues"][row][column] = easier["solution"][row][column]
    change(tmp_path / "out", "test", lambda records: [*records, {**easier, "id": "test-10"}])
    [shared] = output("leaks", tmp_path / "out", code=1)["shared"]
    assert (shared["kind"], shared["splits"], shared["tasks"][1]) == ("solution", ["train", "test"], 1)
