"""Traces of metrics: levels, spells, rises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from coterie.analysis.diagnosis.evidence import LEAST_STEPS, MetricTrace, RunEvidence


def trace(values, steps=None):
    steps = range(1, len(values) + 1) if steps is None else steps
    return MetricTrace.of(
        [{"step": step, "m": value} for step, value in zip(steps, values, strict=True)], "m"
    )


def test_what_is_no_number_is_left_out():
    of = trace([1.0, None, math.nan, 2.0, "x", 3.0])
    assert of.steps.tolist() == [1, 4, 6] and of.values.tolist() == [1.0, 2.0, 3.0]
    assert not of.known and of.rise == 0.0 and of.spell(lambda medians: medians > 0) is None
    assert math.isnan(trace([1.0]).end)


def test_levels_are_medians_of_windows():
    of = trace([*[1.0] * 10, *[5.0] * 10])
    assert (of.width, of.start, of.end) == (4, 1.0, 5.0)
    assert trace([1.0] * 7 + [100.0]).end == 1.0, "a single step decides nothing"
    assert trace([0.0] * 500).width == 20 and trace([0.0] * 10).width == 3


def test_a_spell_begins_where_the_level_changed_and_lasts_to_the_end():
    of = trace([*[1.0] * 30, *[5.0] * 30])
    spell = of.spell(lambda medians: medians > 3)
    assert spell is not None and abs(spell.since - 31) <= 1 and spell.value == 5.0
    assert trace([*[5.0] * 30, *[1.0] * 30]).spell(lambda medians: medians > 3) is None, "it has passed"
    whole = trace([5.0] * 30).spell(lambda medians: medians > 3)
    assert whole is not None and whole.since == 1
    second = trace([1.0, *[5.0] * 29]).spell(lambda medians: medians > 3)
    assert second is not None and second.since == 2, "the first step was healthy"
    gaps = trace([*[1.0] * 30, *[5.0] * 30], range(10, 610, 10)).spell(lambda medians: medians > 3)
    assert gaps is not None and abs(gaps.since - 310) <= 10, "in steps, whatever rows are missing"


@given(st.integers(0, 10_000), st.sampled_from([9, 30, 150]))
def test_the_rise_of_noise_is_small(seed, count):
    values = np.random.default_rng(seed).normal(0, 1, count)
    assert abs(trace(values.tolist()).rise) < (12 if count < 10 else 6)


def test_the_rise_of_noise_is_about_normal():
    rng = np.random.default_rng(0)
    rises = [trace(rng.normal(3, 2, 90).tolist()).rise for _ in range(400)]
    assert 0.85 < np.std(rises) < 1.15 and abs(np.mean(rises)) < 0.15


def test_the_rise_of_a_trend_is_that_of_its_ends():
    values = np.linspace(0, 1, 90) + np.random.default_rng(1).normal(0, 0.05, 90)
    expected = (2 / 3) / (0.05 * math.sqrt(2 / 30))
    assert trace(values.tolist()).rise == pytest.approx(expected, rel=0.25)
    assert trace((-values).tolist()).rise == pytest.approx(-expected, rel=0.25)
    assert trace([1.0] * 20).rise == 0.0
    steps = trace([*[1.0] * 5, *[2.0] * 5])  # the one change is all the noise that there is
    assert steps.rise > 2


@given(st.lists(st.floats(-1e3, 1e3), min_size=LEAST_STEPS, max_size=60, unique=True))
def test_the_agreement_is_kendalls(values):
    of = trace(values)
    assert of.agreement == pytest.approx(stats.kendalltau(range(len(values)), values).statistic, abs=1e-9)


def test_what_is_trained_and_how_far_success_has_come():
    rows = [
        {"step": n, "success": 0.2 + 0.02 * n, "reward/a": 1.0, "policy/p/entropy": 1.0} for n in range(1, 31)
    ]
    settings = {
        "team": {"roles": {"a": {"policy": "p"}, "b": {"policy": "q"}}},
        "policies": {"p": {"train": "lora"}, "q": {"train": "none"}},
        "schedule": {"max_staleness": 2},
    }
    evidence = RunEvidence(rows, settings)
    assert evidence.trained("a") and not evidence.trained("b") and evidence.trained("unknown")
    assert evidence.max_staleness == 2 and (evidence.roles, evidence.policies) == (["a"], ["p"])
    assert not evidence.has_learned and evidence.closed_gap == pytest.approx((0.75 - 0.27) / 0.73, abs=0.1)
    assert evidence.success_rise > 10 and evidence.improves == evidence.success_rise
    bare = RunEvidence(rows[:3])
    assert bare.max_staleness == 0 and bare.success_rise is None and bare.closed_gap == 0.0
