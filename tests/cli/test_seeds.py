"""`coterie run --seeds`: one run a seed, what goes on where it stopped, and the interval over seeds."""

from __future__ import annotations

import threading

import pytest

from coterie import Plugin
from coterie.api.rows import read_metrics
from coterie.api.seeds import SeedRun, over_seeds, train_seeds
from coterie.api.train import train
from coterie.core.errors import SystemFault
from coterie.stats import student_t
from tests.cli.support import TABULAR, coterie
from tests.cli.test_wrong_input import refused


class FailsLater(Plugin):
    """Scores nothing from the second step of seed 1 on."""

    weights = {"late": 0.5}
    components = {"late": "increment"}
    policy_fault = 0.0
    scope = "joint"

    def __init__(self, config, build):
        super().__init__(config, build)
        self._seed, self._calls = build.run.seed, 0

    async def score(self, view):
        self._calls += 1
        if self._seed == 1 and self._calls > 150:  # a step has 8 tasks, 2 turns, 2 stages and 4 branches
            raise SystemFault("the judge is gone")
        return {}


def rows(folder):
    return [
        {key: value for key, value in row.items() if not key.startswith("time/")}
        for row in read_metrics(folder / "metrics.jsonl")
    ]


def test_every_seed_has_a_run_like_the_one_that_is_started_alone(tmp_path):
    done = coterie("run", TABULAR, "schedule.steps=2", "--seeds", "3,5", "--out", tmp_path / "runs")
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["seed-3", "seed-5"]
    alone = coterie("run", TABULAR, "schedule.steps=2", "seed=5", "--out", tmp_path / "alone")
    assert alone.exit_code == 0
    assert rows(tmp_path / "runs" / "seed-5") == rows(tmp_path / "alone")
    assert rows(tmp_path / "runs" / "seed-3") != rows(tmp_path / "alone")
    assert done.stdout.count("finished") == 2 and "val success over 2 seeds: " in done.stdout


def test_the_same_command_goes_on_with_what_is_left(tmp_path):
    stop, began = threading.Event(), []

    def interrupted(*arguments, **options):
        """Ctrl-C comes in the first step of the second run."""
        began.append(options["overrides"])

        def progress(*step):
            if len(began) == 2:
                stop.set()

        return train(*arguments, **options, progress=progress)

    folder = tmp_path / "runs"
    runs = train_seeds(TABULAR, (0, 1, 2), folder, start=interrupted, interrupt=stop)
    assert [(run.seed, run.step, run.finished) for run in runs] == [(0, 4, True), (1, 1, False)]
    assert not (folder / "seed-2").exists()
    finished = (folder / "seed-0" / "metrics.jsonl").stat().st_mtime_ns
    done = coterie("run", TABULAR, "--seeds", "0,1,2", "--out", folder)
    assert done.exit_code == 0 and done.stdout.count("step 4") == 3, done.output
    assert (folder / "seed-0" / "metrics.jsonl").stat().st_mtime_ns == finished
    train(TABULAR, overrides=["seed=1"], out=tmp_path / "alone")
    assert rows(folder / "seed-1") == rows(tmp_path / "alone")


def test_an_error_in_one_seed_is_told_and_the_others_go_on(tmp_path):
    reward = f"rewards={{environment: {{type: environment}}, late: {{type: '{__name__}:FailsLater'}}}}"
    command = ("run", TABULAR, reward, "--seeds", "0,1,2", "--out", tmp_path / "runs")
    done = coterie(*command)
    assert done.exit_code == 1, done.output
    assert "seed 1: " in done.stderr and "late" in done.stderr and "the other seeds go on" in done.stderr
    states = [line.split()[:4] for line in done.stdout.splitlines()[1:4]]
    assert states == [
        ["0", "step", "4", "finished"],
        ["1", "step", "1", "failed"],
        ["2", "step", "4", "finished"],
    ]
    assert "over 2 seeds of 3, those that have finished" in done.stdout
    assert "not finished; the same command goes on: " in done.stderr


def test_what_is_wrong_for_all_seeds_ends_the_command_at_once(tmp_path):
    folder = tmp_path / "runs"
    refused(coterie("run", TABULAR, "sampler.branchs=1", "--seeds", "0,1", "--out", folder), "did you mean")
    refused(coterie("run", TABULAR, "seed=1", "--seeds", "0,1", "--out", folder), "seed", "leave seed=")
    refused(coterie("run", TABULAR, "--seeds", "1,1", "--out", folder), "named twice")
    refused(coterie("run", TABULAR, "--seeds", "0", "--resume", folder), "exclude each other", "--out again")
    assert "e.g. 0,1,2" in coterie("run", TABULAR, "--seeds", "0;1").stderr
    assert not folder.exists()
    (tmp_path / "file").write_text("")
    refused(coterie("run", TABULAR, "--seeds", "0", "--out", tmp_path / "file"), "is a file")


def test_runs_of_another_configuration_are_not_mixed_in(tmp_path):
    command = ("run", TABULAR, "schedule.steps=1", "--seeds", "0", "--out", tmp_path / "runs")
    assert coterie(*command).exit_code == 0
    refused(coterie(*command, "sampler.branches=2"), "sampler.branches: 4 -> 2")


@pytest.mark.parametrize("values", [(0.2, 0.5, 0.35), (0.9, 1.0, 1.0)])
def test_the_interval_over_seeds_is_students_t_within_0_and_1(values, tmp_path):
    runs = [SeedRun(seed, tmp_path, 1, True, value) for seed, value in enumerate(values)]
    found = over_seeds([*runs, SeedRun(9, tmp_path, 0, False, None)])
    mean = sum(values) / 3
    half = student_t(0.975, 2) * (sum((value - mean) ** 2 for value in values) / 2 / 3) ** 0.5
    assert found.n == 3 and found.mean == pytest.approx(mean)
    assert (found.lo, found.hi) == pytest.approx((max(mean - half, 0), min(mean + half, 1)))
