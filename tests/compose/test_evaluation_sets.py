"""`evaluate`: several sets, several samples, sampling of their own, and the set that decides the best."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.compose import compose
from coterie.compose.evaluation_sets import FirstTasks
from coterie.core.errors import ConfigError, RunFolderError
from coterie.core.training import evaluation
from coterie.core.training.evaluation import Evaluation, evaluate_if_due
from coterie.estimate.cost import count
from coterie.estimate.val_interval import evaluating
from coterie.stats import Interval
from coterie.testing import coterie_run
from coterie.testing.support.toys import ROLE
from tests.core.training.test_curriculum import Guess, numbers_of
from tests.test_resume import MATRIX, rows, same

REQUESTS: list[Any] = []
"""Requests of the scripted engine of `table`; a test clears it."""
SETS = {"easy": {"env": {"words": 2}}, "some": {"env": {"words": 3}, "tasks": 4}, "hard": {}}


def play(request: Any, text: str) -> str:
    """Right with two words, with three where the first is right, and never with more."""
    REQUESTS.append(request)
    words, right = numbers_of(text)
    return f"w{right}" if words == 2 or (words == 3 and right == 0) else "none"


def table(**evaluate: Any) -> dict[str, Any]:
    """Two steps of a game with five words, which is evaluated after the second one."""
    return {
        "env": {"type": "tests.core.training.test_curriculum:Guess"},
        "team": {"order": ["one"], "roles": {"one": {"type": ROLE, "policy": "p"}}},
        "policies": {"p": {"model": {"init": "none"}, "train": "none"}},
        "sampler": {"branches": 2, "sampling": {"max_new_tokens": 1, "top_p": 0.9}},
        "algorithm": "at_grpo",
        "engine": {"type": "scripted", "play": f"{__name__}:play"},
        "trainer": "none",
        "schedule": {"steps": 2, "tasks_per_step": 3, "evaluate_every": 2},
        "evaluate": evaluate or None,
    }


def row_of(folder: Path, **evaluate: Any) -> dict[str, Any]:
    REQUESTS.clear()
    coterie.train(table(**evaluate), out=folder)
    return dict(rows(folder)[-1])


def written(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.name: json.loads(path.read_text()) for path in sorted((folder / "eval").iterdir())}


# ---- what is played


def test_without_the_table_names_and_files_are_those_of_one_set(tmp_path: Path) -> None:
    row = row_of(tmp_path / "run")
    assert row["eval/success"] == 0.0 and row["eval/tasks"] == 10 and "eval/tokens/generated" in row
    assert not any(part in name for name in row for part in ("/val/", "easy"))
    files = written(tmp_path / "run")
    assert [*files] == ["step-000002.json"] and "set" not in files["step-000002.json"]
    assert [*files["step-000002.json"]["per_task"]] == [f"val-{n}" for n in range(10)]


def test_every_set_has_its_tasks_its_metrics_and_its_file(tmp_path: Path) -> None:
    """With two words all of 4 tasks are right; with three, of the first 4 those of the first word."""
    row = row_of(tmp_path / "run", sets=SETS, best="some", samples=3)
    assert [row[f"eval/{name}/success"] for name in SETS] == [1.0, 0.5, 0.0]
    assert [row[f"eval/{name}/tasks"] for name in SETS] == [4, 4, 10]
    assert (row["eval/success"], row["eval/tasks"]) == (0.5, 4), "of the set that decides the best"
    assert row["eval/success_ci95"] == row["eval/some/success_ci95"] and "eval/tokens/generated" not in row
    assert row["eval/hard/faults/system"] == 0.0
    files = written(tmp_path / "run")
    assert [*files] == [f"step-000002-{name}.json" for name in ("easy", "hard", "some")]
    some = files["step-000002-some.json"]
    assert (some["set"], some["samples"], some["checkpoint"], some["split"]) == ("some", 3, 2, "val")
    assert some["per_task"] == {f"val-{n}@some": [float(n % 3 == 0)] * 3 for n in range(4)}
    assert json.loads((tmp_path / "run" / "checkpoints" / "best.json").read_text()) == {"step": 2}


def test_one_set_with_a_name_needs_no_best(tmp_path: Path) -> None:
    row = row_of(tmp_path / "run", sets={"easy": SETS["easy"]})
    assert row["eval/success"] == row["eval/easy/success"] == 1.0


def test_samples_and_sampling_of_the_one_set_leave_its_names(tmp_path: Path) -> None:
    row = row_of(tmp_path / "run", samples=2, sampling={"temperature": 0.6})
    assert row["eval/success"] == 0.0 and row["eval/faults/system"] == 0.0
    assert [*written(tmp_path / "run")] == ["step-000002.json"]
    assert len(written(tmp_path / "run")["step-000002.json"]["per_task"]["val-0"]) == 2
    assert [each.sampling.temperature for each in REQUESTS].count(0.6) == 20


def test_a_set_s_sampling_is_over_the_common_one_and_that_over_the_sampler_s(tmp_path: Path) -> None:
    sets = {**SETS, "hard": {"sampling": {"temperature": 0, "max_new_tokens": 3}, "tasks": 1}}
    given = table(sets=sets, best="hard", sampling={"temperature": 0.6})
    given["sampler"]["roles"] = {"one": {"temperature": 0.9, "top_k": 5}}
    REQUESTS.clear()
    coterie.train(given, out=tmp_path / "run")
    seen = {
        each.key.task.partition("@")[2]: each.sampling for each in REQUESTS if each.key.task.startswith("val")
    }
    assert [seen[name].temperature for name in SETS] == [0.6, 0.6, 0.0]
    assert [seen[name].max_new_tokens for name in SETS] == [1, 1, 3]
    assert {(each.top_p, each.top_k) for each in seen.values()} == {(0.9, 5)}, "the sampler's, and its role's"
    trained = {each.sampling.temperature for each in REQUESTS if each.key.task.startswith("train")}
    assert trained == {0.9}
    REQUESTS.clear()
    coterie.evaluate(tmp_path / "run", tasks=1)
    assert {each.sampling.temperature for each in REQUESTS} == {0.9}, "`coterie eval` plays as before"


def test_the_best_checkpoint_is_that_of_the_named_set(monkeypatch: pytest.MonkeyPatch) -> None:
    run = coterie_run("0", evaluate={"sets": {"a": {}, "b": {"tasks": 1}}, "best": "b"},
                      schedule={"evaluate_every": 1})  # fmt: skip
    by_set = {"a": iter([0.9, 0.1, 0.1]), "b": iter([0.2, 0.4, 0.4])}

    async def evaluated(run: Any, split: str, tasks: Any, set_name: str, **settings: Any) -> Any:
        interval = Interval(next(by_set[set_name]), 0.0, 1.0, len(tasks))
        return Evaluation(interval, {}, {}, "", split, {})

    monkeypatch.setattr(evaluation, "evaluate", evaluated)
    seen_rows = []
    for step in (1, 2, 3):
        row = asyncio.run(evaluate_if_due(run, step))
        seen_rows.append((row["eval/success"], run.state.best, run.state.best_step))
    assert seen_rows == [(0.2, 0.2, 1), (0.4, 0.4, 2), (0.4, 0.4, 2)]


# ---- what is wrong


@pytest.mark.parametrize(
    ("given", "path", "text"),
    [
        ({"sets": SETS, "best": "sone"}, "evaluate.best", "did you mean 'some'?"),
        ({"sets": SETS}, "evaluate.best", "evaluate.best=easy"),
        ({"best": "val", "samples": 2}, "evaluate.best", "the run names no sets"),
        ({"sets": {}}, "evaluate.sets", "there is no set"),
        ({"sets": {"easy": None}}, "evaluate.sets", "there is no set"),
        ({"sets": ["easy"]}, "evaluate.sets", "a table by name"),
        ({"sets": {"a b": {}}}, "evaluate.sets.a b", "letters, digits"),
        ({"sampels": 2}, "evaluate.sampels", "did you mean 'samples'?"),
        ({"samples": 0}, "evaluate.samples", "greater than or equal to 1"),
        ({"sampling": {"temprature": 1}}, "evaluate.sampling.temprature", "did you mean 'temperature'?"),
        ({"sets": {"a": {"sampling": {"top_p": 2}}}}, "evaluate.sets.a.sampling.top_p", "less than or equal"),
        ({"sets": {"a": {"task": 2}}}, "evaluate.sets.a.task", "did you mean 'tasks'?"),
        ({"sets": {"a": {"env": {"wrods": 2}}}}, "evaluate.sets.a.env.wrods", "did you mean 'words'?"),
        ({"sets": {"a": {"env": {"words": 99}}}}, "evaluate.sets.a.env.words", "less than or equal to 9"),
        ({"sets": {"a": {"env": {"rich": True}}}}, "evaluate.sets.a.env", "other weights"),
        ({"sets": {"a": {"env": {"type": "math"}}}}, "evaluate.sets.a.env.type", "of the run's environment"),
        ({"sets": {"a": {"env": {"curriculum": {}}}}}, "evaluate.sets.a.env.curriculum", "remove it"),
        ({"sets": {"a": {"samples": 2}, "b": {"samples": 2}}, "best": "a"}, "evaluate.sets.b", "'a' again"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_path(given: dict[str, Any], path: str, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        coterie.load(table(**given)) and coterie.train(table(**given))
    assert error.value.path == path and text in str(error.value)


def test_a_set_without_tasks_is_refused_before_there_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Guess.tasks
    none = lambda self, split, seed: [] if self.config.words == 2 else tasks(self, split, seed)  # noqa: E731
    monkeypatch.setattr(Guess, "tasks", none)
    with pytest.raises(ConfigError, match="the val split has no tasks") as error:
        coterie.train(table(sets=SETS, best="hard"), out=tmp_path / "run")
    assert error.value.path == "evaluate.sets.easy" and not (tmp_path / "run").exists()


def test_a_sampler_without_sampling_has_none_to_change() -> None:
    with pytest.raises(ConfigError, match="has no setting `sampling`") as error:
        coterie_run("0", sampler={"type": f"{__name__}:Plain"}, evaluate={"sampling": {"temperature": 1}})
    assert error.value.path == "evaluate.sampling"


class Plain(coterie.Plugin):
    """A sampler without settings, which is never played."""

    plan = coterie.Plan(chains=1, branches=3, expand="best", pairing="aligned")

    def sampling(self, role: str) -> coterie.Sampling:
        return coterie.Sampling()

    def for_evaluation(self, greedy: bool) -> Plain:
        return self

    async def play(self, *arguments: Any) -> Any:
        raise NotImplementedError


# ---- train keeps apart


def problems(path: Path, numbers: range, name: str = "") -> str:
    path.write_text("".join(
        json.dumps({"prompt": f"What is {n} + 1?", "answer": str(n + 1), "id": f"{name}{n}"}) + "\n"
        for n in numbers
    ))  # fmt: skip
    return str(path)


def maths(folder: Path, test: range = range(90, 93), **env: Any) -> Any:
    """Train on 10 drawn of the problems 0 to 19; the sets have 5 to 8 and 8 to 11, val has 0."""
    source = {
        "train": {"file": problems(folder / "train.jsonl", range(20)), "draw": 10},
        "val": {"file": problems(folder / "val.jsonl", range(1))},
        "test": {"file": problems(folder / "test.jsonl", test)},
    }
    sets = {
        name: {"env": {"val": {"file": problems(folder / f"{name}.jsonl", numbers, name)}}}
        for name, numbers in (("one", range(5, 9)), ("two", range(8, 12)))
    }
    return coterie_run(
        "0", env={"type": "math", "verify": "numbers", **source}, order=["reasoner"],
        roles={"reasoner": {"type": "math_reasoner"}}, sampler={"branches": 1, "chains": 2},
        algorithm={"type": "grpo"}, evaluate={"sets": sets, "best": "one"},
    )  # fmt: skip


def test_train_has_none_of_a_set_s_problems_and_draws_as_many_as_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = maths(tmp_path)
    with caplog.at_level(logging.WARNING, "coterie"):
        train = run.environment.tasks("train", 0)
    assert "8 of 20 train problems are also evaluated" in caplog.text and "val-one5@one" in caplog.text
    assert len(train) == 10 and not {int(task.id.removeprefix("train-")) for task in train} & {
        0,
        *range(5, 12),
    }


def test_a_set_s_problem_in_test_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'test-11' is also in evaluate\.sets, as 'val-two11@two'"):
        maths(tmp_path, test=range(11, 13)).environment.tasks("train", 0)


@pytest.mark.parametrize("shared", [True, False])
def test_tasks_that_an_environment_can_t_leave_out_are_refused(tmp_path: Path, shared: bool) -> None:
    records = {"train": [*"abc"], "other": ["c" if shared else "d"]}
    for name, questions in records.items():
        text = "".join(json.dumps({"question": each, "answer": each}) + "\n" for each in questions)
        (tmp_path / f"{name}.jsonl").write_text(text)
    given = table(sets={"other": {"env": {"val": str(tmp_path / "other.jsonl"), "train": None}}})
    given["env"] = {"type": "team_task", "train": str(tmp_path / "train.jsonl")}
    given["env"]["success"], given["engine"]["play"] = f"{__name__}:right", f"{__name__}:boxed"
    if not shared:
        coterie.train(given, out=tmp_path / "run")
        assert rows(tmp_path / "run")[-1]["eval/other/success"] == 1.0
        return
    with pytest.raises(ConfigError, match="1 of 1 tasks are in train too") as error:
        coterie.train(given, out=tmp_path / "run")
    assert error.value.path == "evaluate.sets.other"


def right(record: Any, transcript: Any) -> float:
    return 1.0


# ---- files, resume, other executors

EVALUATE = [
    "evaluate.sets.pays={env: {table: [[1.0, 1.0], [1.0, 1.0]], tasks: 3}, samples: 2}",
    "evaluate.sets.plain={sampling: {temperature: 0.5}}",
    "evaluate.best=plain",
]


def test_a_file_of_a_set_is_of_the_recipe_s_folder_and_a_part_of_the_run(tmp_path: Path) -> None:
    problems(tmp_path / "aime.jsonl", range(40, 43))
    (tmp_path / "recipe.yaml").write_text(
        "env: {type: math, verify: numbers}\n"
        "team: {order: [reasoner], roles: {reasoner: {type: math_reasoner, policy: p}}}\n"
        "policies: {p: {model: {init: none}, train: none}}\n"
        "sampler: {chains: 2}\nalgorithm: grpo\n"
        f"engine: {{type: scripted, play: '{__name__}:boxed'}}\ntrainer: none\n"
        "schedule: {steps: 1, tasks_per_step: 2, evaluate_every: 1}\n"
        "evaluate: {sets: {aime: {env: {val: {file: aime.jsonl}, val_tasks: 1000}}}}\n".replace(
            ", val_tasks: 1000", ""
        )
    )
    before = coterie.load(tmp_path / "recipe.yaml").digest()
    coterie.train(tmp_path / "recipe.yaml", out=tmp_path / "run")
    assert rows(tmp_path / "run")[-1]["eval/aime/success"] == 0.0
    setting = "evaluate.sets.aime.env.val.file"
    assert str(tmp_path / "aime.jsonl") in (tmp_path / "run" / "config.yaml").read_text()
    assert setting in (tmp_path / "run" / "resolved.yaml").read_text()
    problems(tmp_path / "aime.jsonl", range(50, 53))
    assert coterie.load(tmp_path / "recipe.yaml").digest() != before, "by content"
    with pytest.raises(RunFolderError, match=setting):
        coterie.train(resume=tmp_path / "run", overrides=["schedule.steps=2"])


def boxed(request: Any, text: str) -> str:
    return r"\boxed{7}"


def test_a_resume_has_the_same_sets_and_no_others(tmp_path: Path) -> None:
    coterie.train(MATRIX, overrides=EVALUATE, out=tmp_path / "whole")
    coterie.train(MATRIX, overrides=[*EVALUATE, "schedule.stop_after=1.0e-9"], out=tmp_path / "part")
    for change in ("evaluate.best=pays", "evaluate.samples=4", "evaluate.sets.pays.env.tasks=2",
                   "evaluate=null", "evaluate.sets.new={samples: 3}"):  # fmt: skip
        with pytest.raises(RunFolderError) as error:
            coterie.train(resume=tmp_path / "part", overrides=[change], allow_change=True)
        assert str(error.value.path).startswith("evaluate"), change
    coterie.train(resume=tmp_path / "part", overrides=["schedule.stop_after=null"])
    assert "eval/pays/success" in rows(tmp_path / "part")[-1]
    same(tmp_path / "whole", tmp_path / "part")


@pytest.mark.parametrize("ahead", [1, 2])
def test_steps_ahead_leave_the_evaluations_what_they_are(tmp_path: Path, ahead: int) -> None:
    """Pinned, step t's evaluation plays the weights after update t on every set."""
    settings = [*EVALUATE, f"schedule.max_staleness={ahead}", "schedule.steps=6", "schedule.evaluate_every=1"]
    for name in ("one", "other"):
        coterie.train(MATRIX, overrides=settings, out=tmp_path / name)
    same(tmp_path / "one", tmp_path / "other")
    seen_rows = [row["eval/pays/success"] for row in rows(tmp_path / "one")]
    assert len(seen_rows) == 6 and all(0.0 < float(str(value)) <= 1.0 for value in seen_rows)


def test_plans_and_intervals_count_all_episodes() -> None:
    sets = {"a": {"tasks": 3}, "b": {"samples": 4}}
    run = coterie_run(evaluate={"sets": sets, "best": "a", "samples": 2},
                      schedule={"evaluate_every": 2, "evaluate_tasks": 5})  # fmt: skip
    assert count(run).evaluation == (3 * 2 + 5 * 4) * 2, "two roles"
    given = table(sets={"a": {"samples": 30}})
    given["schedule"]["evaluate_every"] = "auto"
    given["policies"] = {"p": {"model": {"init": "tabular"}}}
    given |= {"trainer": {"type": "tabular", "learning_rate": 1.0}, "engine": "tabular"}
    del given["schedule"]["steps"]
    given["schedule"]["tokens"] = 1000
    assert evaluating(compose(coterie.load(given))).evaluate_every == 1000, "10 * 30 / (.05 * 3 * 2)"


def test_first_tasks_are_made_when_they_are_asked_for() -> None:
    first = FirstTasks([coterie.Task(id=str(n)) for n in range(5)], 3)
    assert [task.id for task in first] == ["0", "1", "2"] and first[-1].id == "2"
    assert [task.id for task in first[1:]] == ["1", "2"] and len(FirstTasks([], 3)) == 0
    with pytest.raises(IndexError):
        first[3]
