"""What runs write is in the list of metrics once, in its range; what a plugin counts is called so."""

from __future__ import annotations

import math
import re

import pytest

from coterie.core.rollout.contracts import FRAMEWORK_METRICS
from coterie.viewing.metric_names import METRICS, described, firsts, matching, parts_of
from tests.viewing.runs import CHAINS, KINDS, TORCH, made, rows_of, with_coach


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Rows by kind of run."""
    folder = tmp_path_factory.mktemp("kinds")
    rows = {
        kind: rows_of(made(folder / f"{n}", *overrides)) for n, (kind, overrides) in enumerate(KINDS.items())
    }
    rows["coach"] = rows_of(made(folder / "coach", source=with_coach()))
    return rows


def check(rows):
    """Every name has one pattern, every number lies in its range; returns the patterns."""
    patterns = set()
    for row in rows:
        for name, value in row.items():
            if name == "mine/steps":
                assert described(name).plugins and matching(name) == []
                continue
            (metric,) = matching(name)
            patterns.add(metric.pattern)
            for number in value if isinstance(value, list) else [value]:
                assert number is None or metric.holds(number), (name, number, metric)
    return patterns


def test_every_name_that_runs_write_has_one_pattern_and_its_values_lie_in_the_range(written):
    assert len(written) == len(KINDS) + 1
    for kind, rows in written.items():
        assert rows and len(check(rows)) > 30, kind
    assert [row["mine/steps"] for row in written["coach"]] == [6.0]  # of two tasks and three roles


def test_what_no_run_here_writes_says_when_it_is_written(written):
    seen = {pattern for rows in written.values() for pattern in check(rows)}
    assert [metric.pattern for metric in METRICS if metric.pattern not in seen and not metric.when] == []
    assert len(seen) > 0.6 * len([metric for metric in METRICS if "<set>" not in metric.pattern])
    for pattern in ("curriculum/rate", "signal/equal_rewards", "eval/<set>/success", "value/target",
                    "baseline/<role>", "normaliser/unscaled", "policy/<policy>/sequence_ratio",
                    "policy/<policy>/staleness/share/<age>", "score/<role>/<component>"):  # fmt: skip
        assert pattern in seen, pattern


@pytest.mark.torch
def test_what_the_torch_trainer_writes(tmp_path):
    ahead = made(tmp_path / "a", *TORCH, "schedule.max_staleness=1", "loss={kl: 0.01, correction: {}}")
    values = made(tmp_path / "b", *CHAINS, *TORCH, "algorithm={type: gae}", "schedule.steps=1")
    patterns = check([*rows_of(ahead), *rows_of(values)])
    ours = {metric.pattern for metric in METRICS if "`torch`" in metric.when or "correction" in metric.when}
    # All targets of a team that never succeeds are equal, so that no share of their variance is explained.
    assert ours - patterns == {"policy/<policy>/explained_variance"}


def test_a_plugins_counts_are_shown_as_counted_by_a_plugin():
    assert described("mine/answers").meaning == "Counted by a plugin." and described("mine/answers").plugins
    assert described("policy/p/my_divergence").meaning == "Reported by the trainer or the loss of a plugin."
    assert described("mine/answers").holds(-1e300) and not described("reward/planner").plugins
    assert matching("mine/answers") == [] and parts_of("mine/answers") == {}


@pytest.mark.parametrize(
    ("name", "pattern", "parts"),
    [
        ("reward/planner", "reward/<role>", {"role": "planner"}),
        ("missing/share", "missing/share", {}),
        ("missing/goal", "missing/<component>", {"component": "goal"}),
        ("score/team/goal", "score/team/<component>", {"component": "goal"}),
        ("score/planner/goal", "score/<role>/<component>", {"role": "planner", "component": "goal"}),
        ("faults/policy", "faults/policy", {}),
        ("faults/policy/policy", "faults/<role>/policy", {"role": "policy"}),
        ("eval/success", "eval/success", {}),
        ("eval/aime/success", "eval/<set>/success", {"set": "aime"}),
        ("eval/missing/share", "eval/missing/share", {}),
        ("policy/a/mismatch/staleness/2", "policy/<policy>/mismatch/staleness/<age>",
         {"policy": "a", "age": "2"}),
        ("policy/a/b/loss", "policy/<policy>/loss", {"policy": "a/b"}),
        ("policy/staleness/max/staleness/optimizer_steps", "policy/<policy>/staleness/optimizer_steps",
         {"policy": "staleness/max"}),
        ("signal/truncated/solver", "signal/truncated/<role>", {"role": "solver"}),
    ],
)  # fmt: skip
def test_a_name_finds_its_pattern_whatever_roles_and_policies_are_called(name, pattern, parts):
    (metric,) = matching(name)
    assert metric.pattern == pattern and parts_of(name) == parts


def test_the_list_covers_every_name_of_the_framework_and_says_each_once():
    heads = {metric.pattern.partition("/")[0] for metric in METRICS}
    assert FRAMEWORK_METRICS - {""} <= heads
    patterns = [metric.pattern for metric in METRICS]
    assert len(set(patterns)) == len(patterns)
    for metric in METRICS:
        assert re.fullmatch(r"[A-Z0-9`(k].*\.", metric.meaning), metric
        assert metric.low <= metric.high and metric.unit, metric
        if metric.unit == "share" and not metric.pattern.endswith(("explained_variance", "judging/share")):
            assert (metric.low, metric.high) == (0.0, 1.0)
        assert not math.isnan(metric.low)


def test_a_dozen_comes_first_in_one_order():
    assert len([metric for metric in METRICS if metric.first]) == 12
    names = [
        "time/step",
        "reward/b",
        "reward/a",
        "loss",
        "success",
        "eval/success",
        "eval/x/success",
        "mine/x",
    ]
    assert firsts(names) == ["success", "eval/success", "reward/a", "reward/b", "time/step"]
