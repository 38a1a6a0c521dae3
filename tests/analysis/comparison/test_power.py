"""Power of the paired t test and Holm's correction, against scipy and against their definitions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from coterie.analysis.comparison.power import (
    SignFlips,
    beyond,
    critical,
    detectable,
    holm,
    needed_shift,
    tasks_for,
)


def outside(bound, df, shift):
    """P(|T| > bound) by scipy, whose lower tail is NaN where it is far below 1e-9."""
    if not shift:
        return 2 * stats.t.sf(bound, df)
    return stats.nct.sf(bound, df, shift) + np.nan_to_num(stats.nct.cdf(-bound, df, shift))


@pytest.mark.parametrize("df", [1, 2, 2.7, 9, 31.5, 1000, 1e6])
@pytest.mark.parametrize("shift", [0.0, 0.5, 2.8, 6.0])
def test_tails_are_scipys(df, shift):
    for bound in (0.5, 1.96, 4.0):
        assert beyond(bound, df, shift) == pytest.approx(outside(bound, df, shift), abs=1e-8)


@pytest.mark.parametrize("df", [1, 3, 3.3, 63, 4000])
def test_bounds_and_detectable_differences_are_scipys(df):
    bound = stats.t.ppf(0.975, df)
    assert critical(df) == pytest.approx(bound, rel=1e-7)
    shift = needed_shift(df)
    assert outside(bound, df, shift) == pytest.approx(0.8, abs=1e-6)
    assert detectable(0.1, df) == pytest.approx(0.1 * shift)


def test_without_spread_nothing_is_known():
    assert (
        math.isnan(detectable(0.0, 9))
        and math.isnan(detectable(math.nan, 9))
        and math.isnan(detectable(0.1, 0))
    )


@pytest.mark.parametrize(
    ("difference", "spread"), [(0.1, 0.5), (-0.02, 0.4), (1.5, 0.5), (0.001, 0.3), (50.0, 0.5)]
)
def test_as_many_tasks_as_have_the_power_and_no_fewer(difference, spread):
    def error(tasks):
        return spread / math.sqrt(tasks), tasks - 1

    def power(tasks):
        df, shift = tasks - 1, abs(difference) / spread * math.sqrt(tasks)
        bound = stats.t.ppf(0.975, df)
        return outside(bound, df, shift)

    tasks = tasks_for(difference, lambda n: error(n) if n > 1 else (math.nan, 0.0))
    assert tasks is not None and tasks > 1 and power(tasks) >= 0.8 - 1e-9
    assert tasks == 2 or power(tasks - 1) < 0.8


def test_no_number_of_tasks_makes_up_for_seeds_or_shows_nothing():
    assert tasks_for(0.1, lambda n: (math.sqrt(0.25 / n + 0.04), 3.0)) is None
    assert tasks_for(0.0, lambda n: (0.5 / math.sqrt(n), n - 1.0)) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
@settings(max_examples=100, deadline=None)
def test_holm_is_the_closed_test_of_bonferroni(p_values):
    """Marcus, Peritz & Gabriel (1976): a hypothesis is rejected where each set of hypotheses with it is."""
    places = range(len(p_values))
    sets = [c for size in places for c in itertools.combinations(places, size + 1)]
    for at, adjusted in enumerate(holm(p_values)):
        closed = max(min(1.0, min(p_values[i] for i in of) * len(of)) for of in sets if at in of)
        assert adjusted == pytest.approx(closed, abs=1e-12)


def test_holm_by_hand_and_with_a_test_that_there_is_not():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    adjusted = holm([0.01, math.nan, 0.04])
    assert (
        adjusted[0] == pytest.approx(0.02) and math.isnan(adjusted[1]) and adjusted[2] == pytest.approx(0.04)
    )


@pytest.mark.parametrize("differ", [6, 9, 14, 30, 120])
def test_of_equal_sizes_the_flips_are_the_sign_test(differ):
    """The number of positive signs is binomial, so scipy has the bound and the power."""
    tasks = 150
    differences = np.zeros(tasks)
    differences[:differ] = 0.5
    differences[: differ // 2] *= -1
    counts = np.arange(differ + 1)
    tails = 2 * stats.binom.sf(counts - 1, differ, 0.5)
    bound = counts[(tails <= 0.05) & (counts > differ / 2)][0]
    smallest = SignFlips(differences).detectable()
    share = (1 + smallest * tasks / (0.5 * differ)) / 2
    power = stats.binom.sf(bound - 1, differ, share) + stats.binom.cdf(differ - bound, differ, share)
    assert power == pytest.approx(0.8, abs=0.03)


def test_few_tasks_that_differ_show_nothing_and_many_are_the_t_tests():
    few = np.array([1.0, -1.0, 1.0, 1.0, 1.0, *[0.0] * 45])
    assert math.isinf(SignFlips(few).detectable()) and math.isnan(SignFlips(np.zeros(50)).detectable())
    assert SignFlips(np.ones(500)).detectable() == 0.0
    assert SignFlips(few).tasks_for(0.06, 10) > 60, "a tenth of the tasks differs"
    assert SignFlips(np.ones(500)).tasks_for(0.5, 600) == 600
