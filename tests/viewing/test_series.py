"""Curves: exact values, gaps, seeds grouped by configuration, and intervals by hand."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from coterie.api.rows import run_folders
from coterie.core.errors import RunFolderError, UserError
from coterie.stats import clustered_bootstrap
from coterie.viewing.series import RunRows, configurations, curve, expand, read_run, smoothed
from tests.viewing.runs import made, rows_of


def run(values, metric="reward/a", seed=0, tokens=None, **settings):
    """A run with a value a step; `...` leaves the metric out of the row, None is no number."""
    rows = []
    for at, value in enumerate(values):
        row = {"step": at + 1, "tokens/total": (tokens or range(10, 1000, 10))[at]}
        rows.append(row if value is ... else {**row, metric: value})
    return RunRows(Path(f"run-{seed}"), {"seed": seed, "name": "n", **settings}, rows)


def test_a_curve_of_one_run_has_the_files_numbers(tmp_path):
    folder = made(tmp_path / "run", "schedule.steps=4")
    found, rows = read_run(folder), rows_of(folder)
    for name in found.names:
        if name.endswith("_ci95"):
            continue
        by_step = curve([found], name)
        having = [row for row in rows if name in row]
        assert by_step.x.tolist() == [row["step"] for row in having]
        assert curve([found], name, "tokens").x.tolist() == [row["tokens/total"] for row in having]
        assert [None if math.isnan(v) else v for v in by_step.values] == [row[name] for row in having]
    success = curve([found], "eval/success")
    assert success.interval == "over tasks" and success.seeds == 1
    bounds = [row["eval/success_ci95"] for row in rows if "eval/success" in row]
    assert [list(pair) for pair in zip(success.low, success.high, strict=True)] == bounds
    assert curve([found], "reward/planner").interval == ""


def test_several_seeds_have_students_t_by_hand():
    runs = [run([1.0, 2.0, 5.0], seed=0), run([3.0, 2.0, 6.0], seed=1), run([5.0, 2.0, 7.0], seed=2)]
    found = curve(runs, "reward/a")
    assert found.values.tolist() == [3.0, 2.0, 6.0] and found.interval == "over 3 seeds"
    t = 4.302652729911275  # of 2 degrees of freedom, 97.5 %
    assert found.high[0] - 3.0 == pytest.approx(t * 2 / math.sqrt(3))
    assert found.high[2] - 6.0 == pytest.approx(t * 1 / math.sqrt(3))
    assert math.isnan(found.low[1])  # three equal numbers don't say how seeds differ


def test_from_six_seeds_on_it_is_the_bootstrap_and_stays_within_the_range():
    values = [0.0, 0.1, 0.9, 1.0, 0.95, 0.9]
    found = curve([run([v], "eval/success", seed) for seed, v in enumerate(values)], "eval/success")
    expected = clustered_bootstrap({str(n): [v] for n, v in enumerate(values)}, share=False)
    assert (found.low[0], found.high[0]) == (expected.lo, min(expected.hi, 1.0))
    two = curve([run([v], "eval/success", seed) for seed, v in enumerate([0.1, 0.9])], "eval/success")
    assert (two.low[0], two.high[0]) == (0.0, 1.0)


def test_missing_values_are_gaps_and_rows_without_the_metric_no_points():
    found = curve([run([1.0, None, ..., 4.0])], "reward/a")
    assert found.x.tolist() == [1, 2, 4]
    assert np.isnan(found.values).tolist() == [False, True, False]
    both = curve([run([1.0, None, ..., None]), run([3.0, 2.0, ..., None], seed=1)], "reward/a")
    assert both.x.tolist() == [1, 2, 4] and both.values[:2].tolist() == [2.0, 2.0]
    assert math.isnan(both.values[2]) and math.isnan(both.low[1])  # one number has no interval
    assert found.counts.tolist() == [1, 0, 1] and not found.partial.any()


def test_a_mean_over_some_of_the_seeds_says_how_many():
    of = curve([run([1.0, 1.0]), run([None, 2.0], seed=1), run([None, ...], seed=2)], "reward/a")
    assert of.values.tolist() == [1.0, 1.5] and of.counts.tolist() == [1, 2]
    assert of.seeds == 3 and of.partial.all()


def test_points_of_some_of_the_seeds_are_open_in_a_plot(tmp_path):
    pytest.importorskip("matplotlib")
    from coterie.viewing.plot import draw

    whole = [run([1.0, 2.0]), run([2.0, 2.0], seed=1)]
    draw(tmp_path / "a.svg", whole, ["reward/a"])
    draw(tmp_path / "b.svg", [whole[0], run([None, 2.0], seed=1)], ["reward/a"])
    texts = [(tmp_path / name).read_text() for name in ("a.svg", "b.svg")]
    assert ["PathCollection" in text for text in texts] == [True, True]
    white = [text.count("fill: #ffffff; stroke: #") for text in texts]
    assert white[1] == white[0] + 1


def test_a_curve_over_seeds_ends_with_the_shortest_run_and_has_mean_tokens():
    runs = [run([1.0, 2.0, 3.0], tokens=[10, 20, 30]), run([1.0, 4.0], tokens=[30, 40], seed=1)]
    found = curve(runs, "reward/a", "tokens")
    assert found.x.tolist() == [20.0, 30.0] and found.left_out == 1


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), max_size=30), st.integers(1, 9))
def test_a_moving_average_is_the_mean_of_what_is_near(values, window):
    array = np.array([math.nan if v is None else v for v in values], dtype=np.float64)
    found = smoothed(array, window)
    assert np.isnan(found).tolist() == [v is None for v in values]
    for at, value in enumerate(values):
        if value is not None:
            near = values[max(0, at - window // 2) : at + (window - 1) // 2 + 1]
            there = [v for v in near if v is not None]
            assert len(near) <= window
            assert found[at] == pytest.approx(sum(there) / len(there), abs=1e-6)


def test_runs_are_grouped_by_all_settings_but_seed_length_and_reports():
    first = run([1.0], seed=1, **{"schedule.steps": 5, "trackers.x.type": "jsonl", "loss.kl": 0.0})
    same = run([1.0], seed=0, **{"schedule.steps": 9, "schedule.record_every": 1, "loss.kl": 0.0})
    other = run([1.0], seed=0, **{"schedule.steps": 5, "loss.kl": 0.1, "loss.type": "gspo"})
    found = configurations([first, other, same])
    assert [[r.seed for r in each.runs] for each in found] == [[0, 1], [0]]
    assert found[0].differs == {"loss.kl": 0.0, "loss.type": None}
    assert [each.label for each in found] == ["kl=0, loss.type=none", "kl=0.1, loss.type=gspo"]
    assert configurations([first])[0].label == "n"


def test_a_budget_counts_where_learning_rates_decay_over_it():
    decays = {"policies.p.optimizer.horizon": "budget"}
    assert len(configurations([run([1.0], **{"schedule.tokens": n}) for n in (1, 2)])) == 1
    assert len(configurations([run([1.0], **decays, **{"schedule.tokens": n}) for n in (1, 2)])) == 2


def test_of_two_runs_of_one_seed_the_first_counts(caplog):
    with caplog.at_level(logging.WARNING, "coterie"):
        (found,) = configurations([run([1.0]), run([3.0], seed=1), run([2.0]), run([2.0])])
    assert found.runs[0].rows[0]["reward/a"] == 1.0, "the first"
    assert [each.seed for each in found.runs] == [0, 1] and len(found.copies) == len(found.notes) == 2
    assert curve(found.runs, "reward/a").values.tolist() == [2.0], "a copy is no seed"
    assert "run-0 has its configuration and its seed, 0" in caplog.text


def test_the_folders_of_seeds_are_one_configuration(tmp_path):
    for seed in (0, 1):
        made(tmp_path / f"seed-{seed}", f"seed={seed}")
    made(tmp_path / "seed-2", "seed=2", "trainer.learning_rate=0.5", "schedule.steps=3")
    folders = run_folders(tmp_path)
    assert [folder.name for folder in folders] == ["seed-0", "seed-1", "seed-2"]
    found = configurations([read_run(folder) for folder in folders])
    assert [(len(each.runs), each.label) for each in found] == [
        (2, "learning_rate=1"),
        (1, "learning_rate=0.5"),
    ]
    assert run_folders(tmp_path / "seed-0") == [tmp_path / "seed-0"] and run_folders(tmp_path / "no") == []


def test_wildcards_and_misspelt_names():
    names = ["success", "reward/planner", "reward/executor", "eval/success", "eval/success_ci95"]
    assert expand(["reward/*", "success", "reward/planner"], names) == [
        "reward/planner",
        "reward/executor",
        "success",
    ]
    assert expand(["eval/*"], names) == ["eval/success"]
    with pytest.raises(UserError, match="there is no metric 'rewrad/planer'") as error:
        expand(["rewrad/planer"], names)
    assert "reward/planner" in error.value.fix
    with pytest.raises(UserError) as error:
        expand(["entropy"], ["policy/a/entropy", "policy/b/entropy"])
    assert "policy/a/entropy" in error.value.fix
    with pytest.raises(UserError) as error:
        expand(["x"], [])
    assert "no row yet" in error.value.why


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match="is not a run folder"):
        read_run(tmp_path)
    (tmp_path / "config.yaml").write_text(json.dumps({"name": "new"}))
    assert read_run(tmp_path).rows == []
