"""Intervals cover what they say they cover, p-values are uniform under the null, and goldens stay."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from coterie.stats import (
    Interval,
    clustered_bootstrap,
    paired_difference,
    pass_at_k,
    score_interval,
    student_t,
    wilson,
)

SIMULATIONS = 400


def coverage(draw: Callable[[np.random.Generator], dict[str, list[float]]], truth: float) -> float:
    """Share of simulated evaluations whose 95 % interval holds the truth."""
    hits = 0
    for number in range(SIMULATIONS):
        interval = clustered_bootstrap(draw(np.random.default_rng([7, number])), resamples=1000, seed=number)
        hits += interval.lo <= truth <= interval.hi
    return hits / SIMULATIONS


def successes(rng: np.random.Generator, tasks: int, samples: int, p: float, concentration: float):
    """Tasks of different difficulty: p_task ~ Beta with mean p; samples are Bernoulli(p_task)."""
    difficulty = rng.beta(p * concentration, (1 - p) * concentration, tasks)
    drawn = rng.random((tasks, samples)) < difficulty[:, None]
    return {f"t{i}": row.astype(float).tolist() for i, row in enumerate(drawn)}


@pytest.mark.parametrize(
    ("tasks", "samples", "p", "concentration"),
    [(64, 4, 0.5, 1.0), (64, 1, 0.9, 1.0), (64, 1, 0.05, 20.0), (32, 4, 0.9, 1.0), (16, 4, 0.5, 1.0),
     (16, 4, 0.9, 1.0), (8, 4, 0.5, 1.0), (4, 4, 0.5, 2.0), (64, 4, 0.98, 1.0)],
)  # fmt: skip
def test_a_95_percent_interval_covers_where_tasks_differ_in_difficulty(tasks, samples, p, concentration):
    # 91 %, less the noise of so many simulations
    assert coverage(lambda rng: successes(rng, tasks, samples, p, concentration), p) >= 0.90


@pytest.mark.parametrize("tasks", [3, 8, 32])
def test_it_covers_for_numbers_that_are_no_shares(tasks):
    def draw(rng: np.random.Generator) -> dict[str, list[float]]:
        centre = rng.normal(5.0, 2.0, tasks)
        return {str(i): rng.normal(centre[i], 1.0, 3).tolist() for i in range(tasks)}

    assert coverage(draw, 5.0) >= 0.92


def test_resampling_samples_instead_of_tasks_would_be_far_too_narrow():
    """What the cluster is for: eight samples of a task are not eight tasks."""
    data = successes(np.random.default_rng(1), 32, 8, 0.5, 0.2)
    by_task = clustered_bootstrap(data)
    flat = [value for values in data.values() for value in values]
    as_if_independent = clustered_bootstrap(flat, list(range(len(flat))))
    assert by_task.n == 32 and as_if_independent.n == 256
    assert by_task.mean == pytest.approx(as_if_independent.mean)
    assert by_task.hi - by_task.lo > 2 * (as_if_independent.hi - as_if_independent.lo)


@pytest.mark.parametrize("solved", [0.0, 1.0])
def test_all_solved_or_none_is_no_certainty(solved):
    interval = clustered_bootstrap({str(i): [solved] * 8 for i in range(64)})
    assert (interval.lo, interval.hi) == pytest.approx((0.94337594, 1.0) if solved else (0.0, 0.05662406))
    assert interval.n == 64, "samples of a task are not counted as tasks"


def test_one_task_says_little_of_a_share_and_nothing_of_other_numbers():
    share = clustered_bootstrap({"a": [1, 0, 1, 1]})
    assert share.mean == 0.75 and share.lo < 0.2 and share.hi > 0.95
    length = clustered_bootstrap({"a": [120.0, 80.0]})
    assert length.mean == 100.0 and math.isnan(length.lo) and math.isnan(length.hi)
    constant = clustered_bootstrap({str(i): [7.0] for i in range(9)})
    assert math.isnan(constant.lo), "no spread was seen and no bound is known"
    assert math.isnan(clustered_bootstrap({str(i): [1.0] for i in range(9)}, share=False).lo)


def test_no_task_is_no_number():
    assert clustered_bootstrap({}).as_dict() == {"mean": None, "ci95": [None, None], "n": 0}


def test_as_dict_is_plain_json():
    assert Interval(0.5, 0.25, 0.75, 8).as_dict() == {"mean": 0.5, "ci95": [0.25, 0.75], "n": 8}
    difference = paired_difference({"a": [1], "b": [0]}, {"a": [0], "b": [0]}).as_dict()
    assert json.loads(json.dumps(difference)) == difference and set(difference) == {"mean", "ci95", "n", "p"}
    assert "ci90" in clustered_bootstrap({"a": [1], "b": [0]}, level=0.9).as_dict()


GOLDEN_SHARES = (0.5025, 0.3625, 0.61)
GOLDEN_SQUARES = (42.1666666667, 19.4043373022, 71.1332295669)


def test_golden_intervals():
    data = {f"t{i:02d}": [(i * 7 % 11) / 10, (i * 5 % 11) / 10] for i in range(20)}
    interval = clustered_bootstrap(data, seed=3)
    assert (interval.mean, interval.lo, interval.hi) == pytest.approx(GOLDEN_SHARES, abs=1e-12)
    long = {f"t{i}": [float(i * i)] for i in range(12)}
    interval = clustered_bootstrap(long, seed=0)
    assert (interval.mean, interval.lo, interval.hi) == pytest.approx(GOLDEN_SQUARES, abs=1e-9)


def test_the_interval_follows_an_independent_bca():
    """Written from Efron & Tibshirani (1993), eq. 14.10-14.15, with loops, a jackknife and plain z."""
    from statistics import NormalDist

    rng = np.random.default_rng(0)
    values = rng.exponential(size=200)
    interval = clustered_bootstrap({f"{i:03d}": [v] for i, v in enumerate(values)}, resamples=4000, seed=1)
    draws = sorted(float(np.mean(rng.choice(values, 200))) for _ in range(4000))
    normal = NormalDist()
    z0 = normal.inv_cdf(sum(d < values.mean() for d in draws) / 4000)
    left_out = np.array([np.delete(values, i).mean() for i in range(200)])
    gaps = left_out.mean() - left_out
    a = (gaps**3).sum() / (6 * (gaps**2).sum() ** 1.5)
    ends = []
    for alpha in (0.025, 0.975):
        z = z0 + normal.inv_cdf(alpha)
        ends.append(draws[round(normal.cdf(z0 + z / (1 - a * z)) * 4000)])
    width = ends[1] - ends[0]
    assert interval.lo == pytest.approx(ends[0], abs=0.08 * width)
    assert interval.hi == pytest.approx(ends[1], abs=0.08 * width)


def test_seed_and_data_decide_and_their_order_does_not():
    data = successes(np.random.default_rng(5), 24, 3, 0.4, 2.0)
    turned = dict(reversed(data.items()))
    assert clustered_bootstrap(data, seed=4) == clustered_bootstrap(turned, seed=4)
    numbers = {str(i): [float(i**3)] for i in range(24)}
    assert clustered_bootstrap(numbers, seed=4) != clustered_bootstrap(numbers, seed=5)


@pytest.mark.parametrize("tasks", [4, 9, 20])
def test_which_task_has_which_value_makes_no_difference(tasks):
    rng = np.random.default_rng(tasks)
    values, others = rng.random(tasks).round(2).tolist(), rng.random(tasks).round(2).tolist()
    dealt = rng.permutation(tasks).tolist()

    def named(numbers):
        return {f"t{place}": [numbers[task]] for place, task in enumerate(dealt)}

    straight = {f"t{task}": [value] for task, value in enumerate(values)}
    against = {f"t{task}": [value] for task, value in enumerate(others)}
    assert named(values) != straight
    assert clustered_bootstrap(named(values), seed=2) == clustered_bootstrap(straight, seed=2)
    difference = paired_difference(straight, against, seed=2)
    assert paired_difference(named(values), named(others), seed=2) == difference
    assert paired_difference(against, straight, seed=2).p == difference.p


@pytest.mark.parametrize(
    ("solved", "tasks", "bounds"),
    # Newcombe (1998), table I, method 3; 2 of 3 by hand: (2/3 + z²/6 -+ z sqrt(2/27 + z²/36)) / (1 + z²/3)
    [(15, 148, (0.0624, 0.1605)), (1, 29, (0.0061, 0.1718)), (2, 3, (0.2077, 0.9385))],
)
def test_tasks_that_are_solved_or_not_have_the_interval_of_wilson(solved, tasks, bounds):
    interval = clustered_bootstrap({str(task): [float(task < solved)] * 2 for task in range(tasks)})
    assert (interval.lo, interval.hi) == pytest.approx(bounds, abs=5e-5)
    assert interval.n == tasks, "samples of a task that agree are not counted"
    gains = clustered_bootstrap({str(task): [float(task < solved)] for task in range(tasks)}, share=False)
    assert (gains.lo, gains.hi) != (interval.lo, interval.hi), "numbers that are 0 and 1 by chance"


def test_arrays_and_mappings_say_the_same():
    data = {"b": [1.0, 0.0], "a": [0.0], "c": [1.0, 1.0, 0.0]}
    pairs = [(value, task) for task, values in data.items() for value in values]
    values, tasks = zip(*pairs, strict=True)
    assert clustered_bootstrap(np.array(values), np.array(tasks)) == clustered_bootstrap(data)
    assert clustered_bootstrap(data).mean == pytest.approx((0.5 + 0.0 + 2 / 3) / 3), "tasks weigh the same"


def test_many_tasks_do_not_need_much_memory():
    values = np.random.default_rng(0).random(50_000)
    interval = clustered_bootstrap(values, np.arange(50_000), resamples=200)
    assert interval.n == 50_000 and interval.lo < 0.5 < interval.hi


@pytest.mark.parametrize("bad", [{"a": [math.nan]}, {"a": []}, {"a": [math.inf]}])
def test_what_is_no_number_is_refused(bad):
    with pytest.raises(ValueError, match="task 'a'"):
        clustered_bootstrap(bad)


def test_levels_and_shapes_are_checked():
    with pytest.raises(ValueError, match="level"):
        clustered_bootstrap({"a": [1]}, level=95)
    with pytest.raises(ValueError, match="one length"):
        clustered_bootstrap([1.0, 2.0], ["a"])
    with pytest.raises(ValueError, match="names its tasks"):
        clustered_bootstrap({"a": [1.0]}, ["a"])


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=3),
        st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=4),
        min_size=1,
        max_size=12,
    )
)
@settings(max_examples=60, deadline=None)
def test_an_interval_of_shares_holds_its_mean_and_stays_a_share(data):
    interval = clustered_bootstrap(data, resamples=200)
    assert 0.0 <= interval.lo <= interval.mean <= interval.hi <= 1.0
    assert interval.hi > interval.lo, "zero width would be a claim of certainty"
    flipped = clustered_bootstrap({t: [1 - v for v in vs] for t, vs in data.items()}, resamples=200)
    assert flipped.mean == pytest.approx(1 - interval.mean)


# ---------------------------------------------------------------------------------------------------- pairs


@pytest.mark.parametrize("tasks", [12, 30])  # all flips, drawn flips
def test_paired_p_values_are_uniform_under_the_null(tasks):
    count, p_values = 1000, []
    for number in range(count):
        rng = np.random.default_rng([11, tasks, number])
        difficulty = rng.normal(0, 3, tasks)  # shared: pairing must take it out
        a, b = ({str(i): [difficulty[i] + rng.normal()] for i in range(tasks)} for _ in range(2))
        p_values.append(paired_difference(a, b, resamples=10, flips=500, seed=number).p)
    ordered, steps = np.sort(p_values), np.arange(1, count + 1) / count
    distance = max(np.abs(ordered - steps).max(), np.abs(ordered - steps + 1 / count).max())
    assert distance < 1.63 / math.sqrt(count), "Kolmogorov-Smirnov at 1 %"


def test_paired_p_values_of_success_never_reject_too_often():
    rejected = 0
    for number in range(SIMULATIONS):
        rng = np.random.default_rng([13, number])
        difficulty = rng.beta(0.5, 0.5, 20)
        a, b = ({str(i): (rng.random(2) < difficulty[i]).astype(float) for i in range(20)} for _ in range(2))
        rejected += paired_difference(a, b, resamples=10, flips=1000, seed=number).p <= 0.05
    assert rejected / SIMULATIONS <= 0.08


def test_pairing_finds_what_two_intervals_hide():
    rng = np.random.default_rng(2)
    difficulty = rng.normal(0, 10, 40)
    a = {str(i): [difficulty[i] + 1 + rng.normal(0, 0.5)] for i in range(40)}
    b = {str(i): [difficulty[i] + rng.normal(0, 0.5)] for i in range(40)}
    interval_a, interval_b, difference = (
        clustered_bootstrap(a),
        clustered_bootstrap(b),
        paired_difference(a, b),
    )
    assert interval_a.lo < interval_b.hi, "the intervals overlap"
    assert difference.lo > 0.5 and difference.hi < 1.5 and difference.p < 0.001 and difference.n == 40
    back = paired_difference(b, a)
    assert back.mean == pytest.approx(-difference.mean) and back.p == pytest.approx(difference.p, abs=1e-3)


def test_the_exact_p_value_is_that_of_all_flips_by_hand():
    differences = [0.5, -0.25, 1.0, 0.75, -0.5, 0.25]
    a = {str(i): [d] for i, d in enumerate(differences)}
    b = {str(i): [0.0] for i in range(len(differences))}
    total = abs(sum(differences))
    flipped = [abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
               for signs in itertools.product((1, -1), repeat=6)]  # fmt: skip
    assert paired_difference(a, b).p == sum(f >= total for f in flipped) / 64


def test_equal_evaluations_differ_by_zero_and_not_for_sure():
    same = {str(i): [1.0, 1.0] for i in range(30)}
    equal = paired_difference(same, same)
    assert equal.mean == 0 and equal.p == 1.0 and equal.lo < 0 < equal.hi
    opposite = paired_difference(same, {task: [0.0, 0.0] for task in same})
    assert opposite.mean == 1.0 and 0.7 < opposite.lo < 1.0 and opposite.hi == 1.0 and opposite.p < 0.001


def test_different_tasks_are_refused():
    with pytest.raises(ValueError, match="different tasks") as caught:
        paired_difference({"a": [1], "b": [1]}, {"a": [1], "c": [1]})
    assert "'b'" in str(caught.value) and "'c'" in str(caught.value)


# ------------------------------------------------------------------------------------------------ pass at k


@pytest.mark.parametrize(("n", "c", "k"), [(1, 0, 1), (5, 2, 1), (5, 2, 3), (6, 6, 2), (8, 3, 8), (7, 1, 4)])
def test_pass_at_k_is_the_share_of_k_subsets_with_a_correct_one(n, c, k):
    hits = [any(i < c for i in subset) for subset in itertools.combinations(range(n), k)]
    assert pass_at_k(n, c, k) == pytest.approx(sum(hits) / len(hits), abs=1e-15)


@given(st.integers(1, 300), st.data())
@settings(max_examples=80, deadline=None)
def test_pass_at_k_is_the_product_of_the_paper(n, data):
    """The numerically stable script of arXiv 2107.03374, figure 3."""
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    paper = 1.0 if n - c < k else 1.0 - float(np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))
    assert pass_at_k(n, c, k) == pytest.approx(paper, abs=1e-12)


def test_pass_at_k_is_unbiased():
    rng = np.random.default_rng(0)
    drawn = [pass_at_k(10, int(rng.binomial(10, 0.3)), 4) for _ in range(20_000)]
    assert np.mean(drawn) == pytest.approx(1 - 0.7**4, abs=0.006)


def test_pass_at_k_golden_and_limits():
    assert pass_at_k(200, 3, 10) == pytest.approx(0.14330744632, abs=1e-11)
    for wrong in [(5, 6, 1), (5, -1, 1), (5, 2, 0), (5, 2, 6)]:
        with pytest.raises(ValueError):
            pass_at_k(*wrong)


# -------------------------------------------------------------------------------------------------- formulas


@pytest.mark.parametrize(
    ("probability", "df", "table"),
    [(0.975, 1, 12.7062047362), (0.975, 2, 4.3026527297), (0.975, 5, 2.5705818356), (0.995, 10, 3.1692726726),
     (0.975, 30, 2.0422724563), (0.975, 200, 1.9718962236), (0.975, 201, 1.9718365063),
     (0.025, 7, -2.3646242516)],
)  # fmt: skip
def test_student_t_is_the_printed_table(probability, df, table):
    assert student_t(probability, df) == pytest.approx(table, abs=2e-7)


def test_wilson_golden():
    # Newcombe (1998), table I, method 3: 81 of 263, 15 of 148, 0 of 20, 1 of 29
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15 / 148, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(1 / 29, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


# ------------------------------------------------------------------------------------------ against scipy


def test_student_wilson_and_pass_at_k_are_scipys():
    for df in (1, 4, 63, 199, 5000):
        assert student_t(0.975, df) == pytest.approx(stats.t.ppf(0.975, df), rel=1e-7)
    for solved, tasks in ((0, 9), (3, 40), (40, 40)):
        interval = stats.binomtest(solved, tasks).proportion_ci(method="wilson")
        assert wilson(solved / tasks, tasks) == pytest.approx((interval.low, interval.high), abs=1e-9)
    assert pass_at_k(10, 3, 4) == pytest.approx(stats.hypergeom.sf(0, 10, 3, 4))


def test_the_sign_flip_is_scipys_permutation_test():
    rng = np.random.default_rng(4)
    a, b = rng.normal(0.4, 1, 10), rng.normal(0, 1, 10)
    ours = paired_difference(*({str(i): [v] for i, v in enumerate(of)} for of in (a, b)))
    theirs = stats.permutation_test(
        (a, b), lambda x, y, axis: (x - y).mean(axis=axis), permutation_type="samples", vectorized=True
    )
    assert ours.p == pytest.approx(theirs.pvalue, abs=1e-12), "all 1,024 flips, in both"


def test_the_bootstrap_is_scipys_bca_at_wider_quantiles():
    """Hesterberg's expansion goes from 95 % to the level that t has at n - 1, times sqrt(n / (n - 1))."""
    values = np.random.default_rng(3).gamma(2.0, size=60)
    ours = clustered_bootstrap({str(i): [v] for i, v in enumerate(values)}, resamples=9000)
    wider = 2 * stats.norm.cdf(stats.t.ppf(0.975, 59) * math.sqrt(60 / 59)) - 1
    theirs = stats.bootstrap(
        (values,),
        np.mean,
        confidence_level=wider,
        n_resamples=9000,
        method="BCa",
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert (ours.lo, ours.hi) == pytest.approx(
        (theirs.low, theirs.high), abs=0.02 * (ours.hi - ours.lo) + 0.012
    )


def test_few_tasks_have_scipys_interval_of_a_mean():
    values = [0.2, 0.9, 0.4, 1.7]
    interval = clustered_bootstrap({str(i): [v] for i, v in enumerate(values)}, share=False)
    theirs = stats.ttest_1samp(values, 0).confidence_interval()
    assert (interval.lo, interval.hi) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


# ------------------------------------------------------------------------------------------ two shares


def test_a_share_by_tasks_counts_as_many_samples_as_would_spread_so():
    """Means 0, 1/2 and 1 of 30 tasks: variance 1/6 * 30/29, so 0.25 / (0.17241 / 30) = 43.5 samples."""
    means = np.repeat([0.0, 0.5, 1.0], 10)
    samples, reach = 0.25 / (means.var(ddof=1) / 30), stats.t.ppf(0.975, 29)
    low, high = score_interval(means)
    assert samples == pytest.approx(43.5)
    # Wilson's interval holds the shares from which the observed one is at most `reach` errors away.
    for bound in (low, high):
        assert abs(bound - 0.5) == pytest.approx(reach * math.sqrt(bound * (1 - bound) / samples))
    assert score_interval(np.ones(9)) == wilson(1.0, 9) and score_interval(np.array([0.3])) == wilson(0.3, 1)
    coins = (np.arange(40) < 12).astype(float)
    reach = stats.t.ppf(0.975, 39)
    for bound in score_interval(coins):
        assert abs(bound - 0.3) == pytest.approx(reach * math.sqrt(bound * (1 - bound) / 40)), "40, not 39"
    assert score_interval(coins)[1] > wilson(0.3, 40)[1], (
        "t is wider than z; 40 tasks are no more than 40 coins"
    )


def test_the_interval_of_two_shares_is_newcombes():
    """Newcombe (1998), method 10 without his correction of phi, at 1 sample a task; bounds by his formula."""
    a = np.array([1.0] * 36 + [0.0] * 14)
    b = np.array([1.0] * 28 + [0.0] * 8 + [1.0] * 4 + [0.0] * 10)
    ours = paired_difference(*({str(i): [v] for i, v in enumerate(of)} for of in (a, b)))
    phi = stats.pearsonr(a, b).statistic
    (a_lo, a_hi), (b_lo, b_hi) = score_interval(np.sort(a)), score_interval(np.sort(b))
    p, q = a.mean(), b.mean()
    low = math.sqrt((p - a_lo) ** 2 - 2 * phi * (p - a_lo) * (b_hi - q) + (b_hi - q) ** 2)
    high = math.sqrt((a_hi - p) ** 2 - 2 * phi * (a_hi - p) * (q - b_lo) + (q - b_lo) ** 2)
    assert phi > 0.3 and (ours.lo, ours.hi) == pytest.approx((p - q - low, p - q + high), abs=1e-12)


def test_a_change_of_few_tasks_is_no_wider_than_it_must_be():
    """3 of 200 tasks differ: the correlation takes off what both runs share."""
    a = {str(i): [float(i % 3 == 0)] for i in range(200)}
    b = {task: [1 - of[0]] if int(task) in (1, 4, 7) else of for task, of in a.items()}
    gain = paired_difference(b, a)
    assert gain.mean == pytest.approx(0.015) and gain.hi - gain.lo < 0.05


def test_a_run_beside_itself_differs_by_zero_and_not_for_sure():
    """Its tasks are correlated by 1, which would leave no width; nothing was seen of how much they vary."""
    a = {str(i): [float(i % 2)] for i in range(40)}
    same = paired_difference(a, a)
    assert same.mean == 0.0 and same.hi == -same.lo > 0.15
