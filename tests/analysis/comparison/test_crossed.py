"""Seeds crossed with tasks: the variance by hand, its limits against scipy, and that it covers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from interval_coverage import coverage
from scipy import stats

from coterie.analysis.comparison.report import CrossedMean, SeedTerm, crossed_mean

RNG = np.random.default_rng(0)


def test_the_variance_by_hand():
    """Two seeds, three tasks: values 1 2 3 and 3 5 1."""
    values = np.array([[1.0, 2.0, 3.0], [3.0, 5.0, 1.0]])
    of = crossed_mean(values)
    # task means 2, 3.5, 2: mean 2.5, variance 0.75; seed means 2 and 3: variance 0.5
    # residuals -0.5, -1, 1.5 and their opposites: 7 over 1 * 2 degrees of freedom, mean square 3.5
    assert (of.mean, of.tasks) == (2.5, 3)
    assert of.task_variance == pytest.approx(0.75 / 3)
    assert of.seed_variance == pytest.approx(max(0.5 / 2, 3.5 / 6)), (
        "of one configuration, the larger stands whole"
    )
    fixed = np.full((1, 3), 2.5)
    assert crossed_mean(values, fixed).seed_variance == pytest.approx(max(0.0, 0.5 / 2 - 3.5 / 6)) == 0.0
    apart = np.array([[1.0, 2.0, 3.0], [11.0, 12.0, 14.0]])
    assert crossed_mean(apart).seed_variance == pytest.approx((31 / 3) ** 2 / 4)
    of = crossed_mean(apart, fixed)
    # seed means 2 and 37/3: variance (31/3)² / 2; residuals ±1/6 and ±1/3: 1/3 over 2, mean square 1/6
    assert of.seed_variance == pytest.approx((31 / 3) ** 2 / 4 - (1 / 6) / 6)
    error, freedom = of.error()
    task, seed, both = of.task_variance, (31 / 3) ** 2 / 4, 1 / 36
    assert error == pytest.approx(math.sqrt(task + seed - both))
    assert freedom == pytest.approx(error**4 / (task**2 / 2 + seed**2 / 1 + both**2 / 2))


def test_of_one_run_a_side_it_is_the_paired_t_test():
    a, b = RNG.normal(size=(1, 30)), RNG.normal(size=(1, 30))
    ours, theirs = crossed_mean(a, b).difference(-math.inf, math.inf), stats.ttest_rel(a[0], b[0])
    assert ours.p == pytest.approx(theirs.pvalue, abs=1e-8)
    assert (ours.lo, ours.hi) == pytest.approx(tuple(theirs.confidence_interval()), abs=1e-8)


def test_where_tasks_are_alike_it_is_the_test_of_welch_over_seeds():
    a = np.repeat(RNG.normal(size=(4, 1)), 2000, axis=1) + 1e-9 * RNG.normal(size=(4, 2000))
    b = np.repeat(2 * RNG.normal(size=(6, 1)), 2000, axis=1) + 1e-9 * RNG.normal(size=(6, 2000))
    ours = crossed_mean(a, b).difference(-math.inf, math.inf)
    theirs = stats.ttest_ind(a[:, 0], b[:, 0], equal_var=False)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-4)
    assert (ours.lo, ours.hi) == pytest.approx(tuple(theirs.confidence_interval()), rel=1e-4)


def test_tasks_shrink_their_share_of_the_variance_and_seeds_keep_theirs():
    values = RNG.normal(size=(3, 50)) + np.array([[-2.0], [0.0], [3.0]])
    of = crossed_mean(values, RNG.normal(size=(2, 50)))
    assert of.error(50) == of.error()
    many, _ = of.error(10**9)
    assert many**2 == pytest.approx(of.seed_variance, rel=1e-6) and of.seed_variance > 0
    assert of.error(1)[1] == 0 and math.isnan(of.error(1)[0])


def test_degrees_of_freedom_are_at_least_one_and_a_term_that_was_cut_off_has_none():
    cancelled = SeedTerm(0.01, ((1.0, 1.0), (0.99, 9.0)))
    assert CrossedMean(0.0, 10, 0.1, [cancelled]).error() == pytest.approx((math.sqrt(0.11), 1.0))
    cut = SeedTerm(0.0, ((1.0, 1.0), (2.0, 9.0)))
    assert CrossedMean(0.0, 10, 0.1, [cut]).error() == pytest.approx((math.sqrt(0.1), 9.0))


def test_without_any_spread_there_is_no_interval():
    of = crossed_mean(np.ones((2, 5)), np.zeros((2, 5)))
    assert of.error()[0] == 0 and math.isnan(of.difference(-1, 1).lo) and math.isnan(of.difference(-1, 1).p)


def test_an_interval_stays_in_the_range_of_its_values():
    wide = crossed_mean(np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])).interval(0.0, 1.0)
    assert (wide.lo, wide.hi) == (0.0, 1.0)


@pytest.mark.learning
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_variance_is_unbiased_where_nothing_is_cut_off(seeds):
    """Effects so large that no estimate falls below 0: the mean of the variances is the variance of means."""
    rng, means, variances = np.random.default_rng(seeds), [], []
    for _ in range(4000):
        values = (
            0.5 * rng.normal(size=(1, 20)) + rng.normal(size=(seeds, 1)) + 0.3 * rng.normal(size=(seeds, 20))
        )
        of = crossed_mean(values)
        means.append(of.mean)
        variances.append(of.error()[0] ** 2)
    true = 0.25 / 20 + 1 / seeds + 0.09 / (20 * seeds)
    assert np.mean(variances) == pytest.approx(true, rel=0.06) and np.var(means) == pytest.approx(
        true, rel=0.06
    )


@pytest.mark.learning
@pytest.mark.parametrize(
    "name", ["eval: success", "compare: one run a side", "compare: several seeds a side"]
)
def test_95_percent_intervals_hold_the_truth_in_93_to_97_percent(name):
    """Of 2,000 synthetic evaluations; benchmarks/interval_coverage.py has those of pass@k and votes too."""
    assert 0.93 <= coverage(name, 2000)["all"]["covered"] <= 0.97


@pytest.mark.learning
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_mean_of_several_seeds_lies_in_its_interval(seeds):
    """Chances of 64 tasks and a shift of each seed, on the scale of log-odds."""
    rng, inside, repetitions = np.random.default_rng(seeds), 0, 1500
    chances = 1 / (1 + np.exp(-rng.normal(size=400_000) - rng.normal(0, 0.4, 400_000)))
    for _ in range(repetitions):
        odds = rng.normal(size=64) + rng.normal(0, 0.4, (seeds, 1))
        of = crossed_mean((rng.random((seeds, 64)) < 1 / (1 + np.exp(-odds))).astype(float))
        interval = of.interval(0.0, 1.0)
        inside += interval.lo <= chances.mean() <= interval.hi
    assert inside / repetitions >= 0.935
