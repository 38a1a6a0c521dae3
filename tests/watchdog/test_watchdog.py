"""The watchdog: plugins of each kind that don't return are named, and healthy ones are not."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import coterie
from coterie.backends.engines.tabular import TabularEngine
from coterie.backends.executors.local import LocalExecutor
from coterie.backends.trackers.jsonl import JsonlTracker
from coterie.backends.trainers.tabular import TabularTrainer
from coterie.plugins.agents.games import PlanPathPlanner
from coterie.plugins.algos.at_grpo import ATGRPO
from coterie.plugins.envs.plan_path import PlanPath
from coterie.plugins.losses.ppo_clip import PPOClip
from coterie.plugins.samplers.tree import TreeSampler
from coterie.plugins.transitions.none import NoTransitionFeedback
from tests.watchdog import hanging

PATIENCE = 0.25
TABULAR = str(Path(__file__).parents[1] / "recipes" / "tabular.yaml")
EPISODE = "in episode train-"


class Warnings(logging.Handler):
    """Hands warnings of methods that have not returned to those that stay."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "has not returned" in record.getMessage():
            self.texts.append(record.getMessage())
            hanging.warned(record.getMessage())


@pytest.fixture
def warnings() -> Iterator[Warnings]:
    handler, log = Warnings(), logging.getLogger("coterie")
    hanging.STAYS.clear()
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)
    for stay in hanging.STAYS:
        stay.named.set()


def run(
    monkeypatch, folder: Path, plugins: Mapping[str, type], *overrides: str, patience: float | None = PATIENCE
) -> None:
    """A step of a run with these plugins, each by its path in the configuration."""
    types = []
    for number, (path, plugin) in enumerate(plugins.items()):
        monkeypatch.setattr(hanging, f"Plugin{number}", plugin, raising=False)
        types.append(f"{path}.type=tests.watchdog.hanging:Plugin{number}")
    short = ["schedule.steps=1", "schedule.tasks_per_step=2", "schedule.evaluate_every=0"]
    limit = f"schedule.patience={'null' if patience is None else patience}"
    coterie.train(TABULAR, overrides=[*short, limit, *types, *overrides], out=folder / "run")


def check(stay: hanging.Stay) -> None:
    """It was named in time, with its place."""
    assert stay.warnings, f"{stay} was not named"
    when, text = stay.warnings[0]
    assert any(f"tests/watchdog/hanging.py, line {line}, in " in text for line in stay.lines), text
    assert "of tests: " in text and "fix: bound what it waits for" in text
    seconds = float(re.search(r"has not returned for ([\d.]+) s", text)[1])
    assert when >= PATIENCE <= seconds, text  # of the watchdog's clock
    if os.getloadavg()[0] < 1:  # else this process waits for its turn
        assert when <= 3 * PATIENCE and seconds <= 4 * PATIENCE, text


KINDS = {
    "env": ("environment", PlanPath, ["tasks", "reset", "acting_roles", "observe", "step", "outcome"]),
    "team.roles.planner": ("role", PlanPathPlanner, ["render", "parse"]),
    "rewards.extra": ("reward", hanging.Constant, ["score"]),
    "algorithm": ("estimator", ATGRPO, ["__call__"]),
    "loss": ("loss", PPOClip, ["__call__"]),
    "transition": ("transition", NoTransitionFeedback, ["tell"]),
    "sampler": ("sampler", TreeSampler, ["play"]),
    "engine": ("engine", TabularEngine, ["open", "load_weights", "generate"]),
    "trainer": ("trainer", TabularTrainer, ["open", "update", "save", "close"]),
    "executor": ("executor", LocalExecutor, ["open", "play"]),
    "trackers.jsonl": ("tracker", JsonlTracker, ["track"]),
}


def test_each_kind_is_named_within_its_patience(tmp_path, monkeypatch, warnings):
    made = {path: hanging.hanging(base, kind, methods) for path, (kind, base, methods) in KINDS.items()}
    run(monkeypatch, tmp_path, made, "sampler.branches=2")
    stayed = {(stay.kind, stay.method): stay for stay in hanging.STAYS}
    assert [*stayed] and stayed.keys() == {
        (kind, method) for kind, _, methods in KINDS.values() for method in methods
    }
    for path, (kind, _, methods) in KINDS.items():
        for method in methods:
            stay = stayed[kind, method]
            check(stay)
            text = stay.warnings[0][1]
            assert f"({path}); fix:" in text
            in_loop = stay.way == "lock" and kind != "tracker" and method != "tasks"
            assert ("nothing else is played meanwhile" in text) is in_loop
            lives = {"open", "tasks", "load_weights", "close", "__call__", "update", "save", "track"}
            assert (EPISODE in text) is (method not in lives), text


def test_each_way_of_staying_is_named(tmp_path, monkeypatch, warnings):
    made = {
        "env": hanging.hanging(PlanPath, "environment", ["step"], hanging.ASYNC_WAYS),
        "team.roles.planner": hanging.hanging(PlanPathPlanner, "role", ["parse"], hanging.WAYS),
    }
    run(monkeypatch, tmp_path, made, "schedule.tasks_per_step=1")
    assert len(hanging.STAYS) == len(hanging.ASYNC_WAYS) + len(hanging.WAYS)
    for stay in hanging.STAYS:
        check(stay)
        text = stay.warnings[0][1]
        place = "/n/planner/b" if stay.kind == "role" else "/n"
        assert f"{EPISODE}" in text and place in text
        assert ("nothing else is played meanwhile" in text) is (stay.way in hanging.WAYS)


@pytest.mark.parametrize("patience", [0, None])
def test_nothing_is_named_without_a_patience(tmp_path, monkeypatch, warnings, patience):
    monkeypatch.setattr(hanging, "LIMIT", 2.5 * PATIENCE)
    run(monkeypatch, tmp_path, {"env": hanging.hanging(PlanPath, "environment", ["step"])}, patience=patience)
    assert warnings.texts == [] and len(hanging.STAYS) == 1
