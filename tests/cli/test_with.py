"""`--with OVERLAY,...` on every command that takes a recipe."""

from __future__ import annotations

import json

import pytest

from coterie.recipes import load, read_yaml
from tests.cli.support import TABULAR, coterie


@pytest.fixture
def overlays(tmp_path):
    (tmp_path / "short.yaml").write_text("schedule: {steps: 1, evaluate_every: 0}\n")
    (tmp_path / "long.yaml").write_text("schedule: {steps: 4}\n")
    (tmp_path / "small.yaml").write_text("env: {size: 4, max_moves: 2}\nschedule: {tasks_per_step: 2}\n")
    return {name: str(tmp_path / f"{name}.yaml") for name in ("short", "long", "small")}


def test_run_eval_and_plan_take_overlays_and_a_resumed_run_needs_none(overlays, tmp_path):
    layers = ("--with", f"{overlays['short']},{overlays['small']}")
    done = coterie("run", TABULAR, *layers, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    written = read_yaml(tmp_path / "run" / "config.yaml")
    assert written["name"] == "tabular_short_small" and written["env"]["size"] == 4
    expected = load(TABULAR, overlays=[overlays["short"], overlays["small"]])
    assert load(tmp_path / "run").digest() == expected.digest()
    resumed = coterie("run", "--resume", tmp_path / "run", "schedule.steps=2")
    assert resumed.exit_code == 0 and "step 2/2" in resumed.stdout, resumed.output
    refused = coterie("run", "--resume", tmp_path / "run", TABULAR, "--with", overlays["short"])
    assert refused.exit_code == 2 and "a resumed run can't change its configuration" in refused.stderr
    evaluated = coterie("eval", TABULAR, *layers, "--tasks", "2", "--json")
    assert evaluated.exit_code == 0, evaluated.output
    planned = coterie("plan", TABULAR, "--with", overlays["small"], "--with", overlays["short"], "--json")
    assert json.loads(planned.stdout)["name"] == "tabular_small_short"


def test_overlays_that_contradict_each_other_exit_2(overlays):
    done = coterie("config", TABULAR, "--with", f"{overlays['short']},{overlays['long']}")
    assert done.exit_code == 2 and "Traceback" not in done.stderr
    assert "schedule.steps: file" in done.stderr and "set one key differently" in done.stderr
    assert "short.yaml has 1" in done.stderr and "long.yaml has 4" in done.stderr


def test_data_takes_overlays_of_a_recipe_and_refuses_them_for_records(overlays, tmp_path):
    made = coterie(
        "data", "make", TABULAR, "--with", overlays["small"], "--tasks", "2", "--out", tmp_path / "data"
    )
    assert made.exit_code == 0, made.output
    assert json.loads((tmp_path / "data" / "manifest.json").read_text())["environment"]["size"] == 4
    refused = coterie("data", "show", tmp_path / "data", "--with", overlays["small"])
    assert refused.exit_code == 2 and "it takes no settings" in refused.stderr and "--with" in refused.stderr
