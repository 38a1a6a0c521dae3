"""`coterie.compare` on evaluations whose differences are known."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats

import coterie
from coterie.analysis.comparison.power import holm
from coterie.analysis.comparison.report import crossed_mean
from coterie.core.errors import UserError
from coterie.stats import clustered_bootstrap, paired_difference
from tests.analysis.comparison.records import record, runs, write


def test_two_files_are_paired_by_task(tmp_path):
    rng = np.random.default_rng(1)
    a, b = (rng.random((40, 2)) < chance for chance in (0.4, 0.6))
    report = coterie.compare(write(tmp_path / "a.json", a), write(tmp_path / "b.json", b))
    (result,) = report.comparisons
    first, second = (record(values)["per_task"] for values in (a, b))
    assert (result.first, result.second) == ("a", "b")
    assert result.difference == paired_difference(second, first), "the later minus the earlier"
    assert report.sides["a"].interval == clustered_bootstrap(first, share=True)
    assert result.p_holm == result.difference.p and result.seed_share == 0
    differences = b.mean(axis=1) - a.mean(axis=1)
    error = differences.std(ddof=1) / math.sqrt(40)
    bound = stats.t.ppf(0.975, 39)
    assert stats.nct.sf(bound, 39, result.detectable / error) >= 0.8 - 1e-3, "the sign-flip test is stricter"
    assert "one run" in report.notes[0]


def test_as_many_more_tasks_as_the_observed_difference_needs(tmp_path):
    rng = np.random.default_rng(3)
    a = rng.random((30, 1)) < 0.5
    b = np.where(rng.random((30, 1)) < 0.8, a, rng.random((30, 1)) < 0.7)
    (result,) = coterie.compare(write(tmp_path / "a.json", a), write(tmp_path / "b.json", b)).comparisons
    d = b.mean(axis=1) - a.mean(axis=1)
    assert not result.shown and d.mean() > 0
    needed = result.tasks_needed
    bound = stats.t.ppf(0.975, needed - 1)
    assert stats.nct.sf(bound, needed - 1, d.mean() / d.std(ddof=1) * math.sqrt(needed)) >= 0.8 - 1e-4
    assert result.more_tasks == needed - 30


def test_a_shown_difference_needs_no_more_tasks(tmp_path):
    a, b = np.zeros((40, 1)), np.ones((40, 1)) * (np.arange(40)[:, None] % 4 > 0)
    (result,) = coterie.compare(write(tmp_path / "a.json", a), write(tmp_path / "b.json", b)).comparisons
    assert result.shown and result.more_tasks == 0


def test_seeds_of_a_side_are_seeds_and_widen_the_interval():
    rng = np.random.default_rng(5)
    sides = [runs(rng, 60, 3, mean, 0.1) for mean in (0.5, 0.6)]
    evaluations = [[_Evaluation(record(values, seed=s)) for s, values in enumerate(side)] for side in sides]
    report = coterie.compare({"A": evaluations[0], "B": evaluations[1]})
    (result,) = report.comparisons
    tables = [np.array([values.mean(axis=1) for values in side]) for side in sides]
    expected = crossed_mean(tables[1], tables[0])
    # tasks are sorted by name, so sums round in another order
    assert result.difference.mean == pytest.approx(expected.mean)
    ours, theirs = result.difference, expected.difference(-1.0, 1.0)
    assert (ours.lo, ours.hi, ours.p) == pytest.approx((theirs.lo, theirs.hi, theirs.p))
    error, _ = expected.error()
    assert result.seed_share == pytest.approx(expected.seed_variance / error**2) and result.seed_share > 0.3
    assert report.sides["A"].seeds == 3 and report.notes == []
    pooled = [record(np.mean(side, axis=0))["per_task"] for side in sides]
    naive = paired_difference(pooled[1], pooled[0])
    assert ours.hi - ours.lo > 1.5 * (naive.hi - naive.lo)


class _Evaluation:
    """What `compare` asks of a `TeamEvaluation`."""

    def __init__(self, table):
        self.table = table

    def record(self):
        return self.table


def test_several_comparisons_are_corrected(tmp_path):
    rng = np.random.default_rng(7)
    files = [write(tmp_path / f"{n}.json", rng.random((50, 2)) < 0.4 + 0.1 * n) for n in range(4)]
    report = coterie.compare(*files)
    assert [(each.first, each.second) for each in report.comparisons] == [("0", "1"), ("0", "2"), ("0", "3")]
    assert [each.p_holm for each in report.comparisons] == holm([r.difference.p for r in report.comparisons])
    every = coterie.compare(*files, all_pairs=True).comparisons
    assert len(every) == 6 and [(e.first, e.second) for e in every[3:]] == [
        ("1", "2"),
        ("1", "3"),
        ("2", "3"),
    ]
    assert all(wide.p_holm >= narrow.p_holm for wide, narrow in zip(every, report.comparisons, strict=False))


def test_strata_say_where_the_difference_lies(tmp_path):
    rng = np.random.default_rng(9)
    strata = {f"test-{task}": "hard" if task % 2 else "easy" for task in range(60)}
    a = rng.random((60, 2)) < 0.5
    b = a | (np.arange(60)[:, None] % 2 == 1)
    files = [write(tmp_path / f"{name}.json", of, strata=strata) for name, of in (("a", a), ("b", b))]
    (result,) = coterie.compare(*files).comparisons
    easy, hard = result.by_stratum["easy"], result.by_stratum["hard"]
    assert (easy.difference.mean, easy.difference.n, easy.shown) == (0.0, 30, False)
    assert hard.shown and hard.difference.mean == pytest.approx(1 - a[1::2].mean())
    assert hard.p_holm == pytest.approx(2 * hard.difference.p), "of two classes"
    assert easy.tasks_needed is None and math.isnan(easy.detectable)
    assert json.dumps(result.as_dict()), "no NaN in it"


def test_another_metric_and_one_that_a_file_lacks(tmp_path):
    rng = np.random.default_rng(2)
    turns = [{f"test-{t}": [float(rng.integers(1, 9)), None] for t in range(20)} for _ in range(2)]
    files = [
        write(tmp_path / f"{n}.json", np.ones((20, 1)), outcomes={"turns": turns[n]} if n < 2 else {})
        for n in range(3)
    ]
    (result,) = coterie.compare(files[0], files[1], metric="turns").comparisons
    expected = np.mean([turns[1][t][0] - turns[0][t][0] for t in turns[0]])
    assert result.difference.mean == pytest.approx(expected)
    with pytest.raises(UserError, match="has no metric 'turns'") as caught:
        coterie.compare(files[0], files[2], metric="turns")
    assert caught.value.path == "--metric" and "success" in caught.value.fix


def test_tasks_that_a_side_never_finished_are_left_out_and_that_is_noted(tmp_path):
    values = {f"test-{t}": [1.0] for t in range(10)}
    lost = {task: of for task, of in values.items() if task != "test-3"}
    contents = {task: f"of {task}" for task in values}
    a, b = write(tmp_path / "a.json", values), write(tmp_path / "b.json", lost, contents=contents)
    report = coterie.compare(a, b)
    assert report.tasks == 9 and "1 of 10 tasks have no value" in report.notes[0]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"values": np.ones((12, 1))}, "different tasks (10 are common)"),
        ({"split": "val"}, "different splits"),
        ({"contents": {f"test-{t}": "other" for t in range(10)}}, "10 tasks have another content"),
        (
            {"contents": {}, "files": {"env.test.file": {"sha256": "b"}}},
            "env.test.file names another content",
        ),
        ({"values": {"test-0": [1.0]}}, "different tasks (1 are common)"),
    ],
)
def test_what_is_not_of_the_same_tasks_is_refused(tmp_path, second, message):
    first = {"files": {"env.test.file": {"sha256": "a"}}}
    a = write(tmp_path / "a.json", np.ones((10, 1)), **first)
    b = write(tmp_path / "b.json", second.pop("values", np.zeros((10, 1))), **second)
    with pytest.raises(UserError) as caught:
        coterie.compare(a, b)
    assert message in str(caught.value) and caught.value.fix


def test_the_common_tasks_alone_where_that_is_asked_for(tmp_path):
    a = write(tmp_path / "a.json", np.ones((10, 1)))
    b = write(tmp_path / "b.json", np.arange(12)[:, None] % 2)
    report = coterie.compare(a, b, common=True)
    assert report.tasks == 10 and "2 of 12 tasks" in report.notes[0]
    one = write(tmp_path / "one.json", {"test-0": [1.0]})
    with pytest.raises(UserError, match="one common task, 'test-0'"):
        coterie.compare(a, one, common=True)
    with pytest.raises(UserError, match=r"different tasks \(0 are common\)"):
        coterie.compare(a, write(tmp_path / "no.json", {"x": [1.0], "y": [0.0]}), common=True)


def test_files_without_contents_are_compared_and_that_is_noted(tmp_path):
    a, b = (write(tmp_path / f"{n}.json", np.arange(10)[:, None] % n, contents={}) for n in (2, 3))
    assert coterie.compare(a, b).notes[0].startswith(f"{a} and 1 more do not say what the tasks hold")
    c = write(tmp_path / "c.json", np.arange(10)[:, None] % 2)
    assert coterie.compare(c, b).notes[0].startswith(f"{b} does not say")


def test_the_seeds_of_a_side_are_checked(tmp_path):
    ones = np.ones((10, 1))
    files = {n: write(tmp_path / f"{n}.json", ones, seed=n, configuration="c") for n in (0, 1, 2)}
    other = write(tmp_path / "other.json", ones, seed=3, configuration="d")
    again = write(tmp_path / "again.json", ones, seed=7, run_seed=0, configuration="c")
    with pytest.raises(UserError, match="A: two runs of one seed"):
        coterie.compare(f"A={files[0]},{again}", f"B={other}")
    with pytest.raises(UserError, match="not one configuration"):
        coterie.compare(f"A={files[0]},{other}", f"B={files[1]}")
    notes = coterie.compare(files[0], files[1]).notes
    assert any("differ in their seed alone" in note and "A=0,1" in note for note in notes)
    mixed = coterie.compare(f"A={files[0]},{files[1]}", f"B={other}").notes
    assert any(note.startswith("B is one run") for note in mixed)


def test_equal_seeds_are_no_certainty(tmp_path):
    """Nothing spreads: as many coins as tasks, not an interval of width 0."""
    files = [write(tmp_path / f"{n}.json", np.ones((20, 1)), seed=n) for n in range(4)]
    (result,) = coterie.compare(f"A={files[0]},{files[1]}", f"B={files[2]},{files[3]}").comparisons
    assert result.difference.lo < 0 < result.difference.hi and not result.shown


def test_the_json_has_it_all_and_the_file_every_task(tmp_path):
    a, b = (write(tmp_path / f"{n}.json", np.arange(10)[:, None] % n == 0) for n in (2, 3))
    report = coterie.compare(a, b)
    report.write(tmp_path / "report.json")
    written = json.loads((tmp_path / "report.json").read_text())
    assert {**report.as_dict(), "per_task": written["per_task"]} == written
    assert written["per_task"]["2"]["test-4"] == 1.0 and written["sides"]["2"]["sources"] == [a]
    keys = set(written["comparisons"][0])
    assert keys == {"first", "second", "mean", "ci95", "n", "p", "p_holm", "shown", "detectable",
                    "tasks_needed", "more_tasks", "seed_share"}  # fmt: skip


def test_of_five_tasks_the_sign_flip_test_shows_nothing(tmp_path):
    """2 of 32 flips are as far from 0: p is 1/16. Of six tasks it is 1/32."""
    for tasks in (5, 6):
        a, b = np.zeros((tasks, 4)), np.ones((tasks, 4)) * (np.arange(4) < 3)
        b[0] = 1.0
        files = [write(tmp_path / f"{name}{tasks}.json", of) for name, of in (("a", a), ("b", b))]
        report = coterie.compare(*files)
        (result,) = report.comparisons
        assert result.difference.p == 2.0 ** (1 - tasks) and result.shown == (tasks == 6)
        assert math.isinf(result.detectable) == (tasks == 5) and result.tasks_needed == 6
        assert result.more_tasks == (1 if tasks == 5 else 0)
        assert (result.as_dict()["detectable"] is None) == (tasks == 5)
        assert result.only_by_interval == (tasks == 5)
        assert any("the interval leaves 0 out" in note for note in report.notes) == (tasks == 5)


def test_what_no_number_of_tasks_shows_is_not_called_none_more():
    """Not shown, and seeds spread more than tasks could make up for."""
    rng = np.random.default_rng(8)
    sides = {
        name: [_Evaluation(record(values, seed=s)) for s, values in enumerate(runs(rng, 40, 2, mean, 0.3))]
        for name, mean in (("A", 0.5), ("B", 0.51))
    }
    (result,) = coterie.compare(sides).comparisons
    assert not result.shown and result.tasks_needed is None and result.more_tasks is None


def test_a_side_of_seeds_that_all_fail_has_the_interval_of_coins():
    sides = {
        name: [_Evaluation(record(np.full((8, 1), mean), seed=s)) for s in range(2)]
        for name, mean in (("A", 0.0), ("B", 1.0))
    }
    report = coterie.compare(sides)
    assert report.sides["A"].interval.lo == 0.0 and 0.2 < report.sides["A"].interval.hi < 0.5
