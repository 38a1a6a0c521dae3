"""How often a run evaluates where nobody says it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import coterie
from coterie.api.rows import read_metrics
from coterie.compose import compose
from coterie.core.errors import DataError
from coterie.estimate.val_interval import FEWEST, SHARE, evaluating
from coterie.recipes import load
from tests.cli.support import coterie as command
from tests.games import Matrix
from tests.test_resume import MATRIX, same

AUTO = "schedule.evaluate_every=auto"


def interval(*overrides: str, recipe: str = MATRIX) -> int:
    return evaluating(
        compose(load(recipe, overrides=[AUTO, "schedule.steps=1000", *overrides]))
    ).evaluate_every


@pytest.mark.parametrize(("tasks", "branches", "evaluated", "steps"), [
    (4, 4, 4, FEWEST),  # 16 actions a step, and 4 in an evaluation
    (4, 4, 16, 20),
    (1, 4, 16, 80),
    (16, 8, 64, FEWEST),
    (16, 4, 64, 20),
])  # fmt: skip
def test_evaluations_sample_at_most_a_twentieth_of_what_training_does(
    monkeypatch, tasks, branches, evaluated, steps
):
    monkeypatch.setattr(Matrix, "tasks", lambda self, split, seed: [coterie.Task(id=split)] * 64)
    sizes = [f"schedule.tasks_per_step={tasks}", f"sampler.branches={branches}"]
    found = interval(*sizes, f"schedule.evaluate_tasks={evaluated}")
    assert found == steps and evaluated <= SHARE * tasks * branches * found


def test_neither_the_length_nor_its_unit_matters(tmp_path):
    """Else a run that is made longer would have other rows than one that was long from the beginning."""
    intervals = {
        interval(*length)
        for length in ((), ("schedule.steps=50",), ("schedule.steps=null", "schedule.tokens=9000"),
                       ("schedule.steps=null", "schedule.epochs=3"))
    }  # fmt: skip
    assert len(intervals) == 1
    settings = [AUTO, "schedule.evaluate_tasks=2", "schedule.checkpoint_every=auto"]
    coterie.train(MATRIX, overrides=[*settings, "schedule.steps=12"], out=tmp_path / "whole")
    coterie.train(MATRIX, overrides=[*settings, "schedule.steps=4"], out=tmp_path / "part")
    coterie.train(resume=tmp_path / "part", overrides=["schedule.steps=12"])
    rows = read_metrics(tmp_path / "part" / "metrics.jsonl")
    assert [row["step"] for row in rows if "eval/success" in row] == [10]
    same(tmp_path / "whole", tmp_path / "part")


def test_a_stated_number_is_kept():
    assert interval("schedule.evaluate_every=3") == 3
    assert interval("schedule.evaluate_every=0") == 0


def no_val(monkeypatch, answer):
    original = Matrix.tasks

    def tasks(self, split, seed):
        if split != "val":
            return original(self, split, seed)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(Matrix, "tasks", tasks)


@pytest.mark.parametrize(
    "answer", [coterie.ConfigError("there is no file for split 'val'"), KeyError("val"), []]
)
def test_without_a_split_val_a_run_trains_and_says_that_it_evaluates_nothing(
    tmp_path, monkeypatch, caplog, answer
):
    no_val(monkeypatch, answer)
    settings = [AUTO, "schedule.steps=12", "schedule.evaluate_tasks=2"]
    assert coterie.train(MATRIX, overrides=settings, out=tmp_path / "run").finished
    assert caplog.text.count("training is not evaluated on val") == 1
    assert not any("eval/success" in row for row in read_metrics(tmp_path / "run" / "metrics.jsonl"))


def test_a_wrong_record_of_val_is_told_before_a_folder_is_made(tmp_path, monkeypatch):
    no_val(monkeypatch, DataError("val.jsonl", 3, "answer", "is missing"))
    with pytest.raises(DataError, match=r"val.jsonl, line 3"):
        coterie.train(MATRIX, overrides=[AUTO, "schedule.steps=12"], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_val_is_not_asked_for_where_no_evaluation_could_come_due(monkeypatch, caplog):
    no_val(monkeypatch, KeyError("val"))
    assert interval(f"schedule.steps={FEWEST - 1}") == interval("policies.*.train=none") == 0
    assert not caplog.records


def test_a_plan_says_how_often_a_run_evaluates():
    planned = ("plan", MATRIX, AUTO, "schedule.steps=50", "schedule.evaluate_tasks=8")
    found = json.loads(command(*planned, "--json").stdout)
    assert found["evaluation"]["every"] == FEWEST and found["evaluation"]["generations"] > 0
    assert f"every {FEWEST} steps: " in command(*planned).stdout


def test_the_defaults_have_the_digest_of_the_versions_before(tmp_path: Path):
    """Their folders and jobs say 0 where nothing was stated."""
    before = ("schedule.evaluate_every=0", "schedule.checkpoint_every=0")
    now = load(MATRIX, overrides=[AUTO, "schedule.checkpoint_every=auto"])
    assert now.digest() == load(MATRIX, overrides=before).digest() != load(MATRIX).digest()
    recipe = tmp_path / "unstated.yaml"
    recipe.write_text("\n".join(Path(MATRIX).read_text().splitlines()[:-1]) + "\nschedule: {steps: 4}\n")
    unstated = load(recipe).config.schedule
    assert (unstated.evaluate_every, unstated.checkpoint_every) == ("auto", "auto")
    coterie.train(MATRIX, overrides=before, out=tmp_path / "run")
    resumed = coterie.train(resume=tmp_path / "run", overrides=["schedule.checkpoint_every=auto", AUTO])
    assert resumed.finished


def test_a_setting_that_is_neither_a_number_nor_auto_is_refused():
    for value in ("-1", "often", "1.5"):
        with pytest.raises(coterie.ConfigError) as error:
            load(MATRIX, overrides=[f"schedule.checkpoint_every={value}"])
        assert "schedule.checkpoint_every" in str(error.value), error.value
