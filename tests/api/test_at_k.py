"""pass@k, majority@k and avg@n are means over all subsets of k samples, and agree with scipy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import hypergeom, multivariate_hypergeom

from coterie.api.at_k import at_k, best_at_k, ks_of, majority_at_k, powers_of_two
from coterie.core.errors import UserError
from coterie.stats import clustered_bootstrap

ANSWERS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.sampled_from([0.0, 0.5, 1.0])),
    min_size=1,
    max_size=7,
)


def by_hand(answers, values, k):
    """The vote of each subset, counted one by one."""
    worth = {
        name: [v for a, v in zip(answers, values, strict=True) if a == name] for name in set(answers) - {None}
    }
    total, subsets = 0.0, list(itertools.combinations(answers, k))
    for subset in subsets:
        votes = [answer for answer in subset if answer is not None]
        top = max((votes.count(answer) for answer in votes), default=0)
        winners = {answer for answer in votes if votes.count(answer) == top}
        total += sum(sum(worth[w]) / len(worth[w]) for w in winners) / len(winners) if winners else 0.0
    return total / len(subsets)


@given(ANSWERS, st.data())
@settings(max_examples=80, deadline=None)
def test_a_vote_and_the_best_are_those_of_all_subsets(samples, data):
    answers, values = zip(*samples, strict=True)
    k = data.draw(st.integers(1, len(samples)))
    assert majority_at_k(answers, values, k) == pytest.approx(by_hand(answers, values, k), abs=1e-12)
    subsets = list(itertools.combinations(values, k))
    assert best_at_k(values, k) == pytest.approx(sum(map(max, subsets)) / len(subsets), abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(8, 3, 4), (20, 1, 7), (64, 40, 2), (5, 0, 3), (5, 5, 5)])
def test_of_zeros_and_ones_the_best_is_the_closed_form_and_scipys(n, c, k):
    values = [1.0] * c + [0.0] * (n - c)
    assert best_at_k(values, k) == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k), abs=1e-15)
    assert best_at_k(values, k) == pytest.approx(hypergeom.sf(0, n, c, k), abs=1e-12)


def test_a_vote_of_many_samples_is_scipys():
    """12 right, 9 and 4 of two wrong answers; 5 of 25 are drawn: the share of draws that right wins."""
    counts, k = np.array([12, 9, 4]), 5
    expected = 0.0
    for drawn in itertools.product(range(k + 1), repeat=3):
        if sum(drawn) == k:
            weight = multivariate_hypergeom.pmf(drawn, counts, k)
            tied = [index for index in range(3) if drawn[index] == max(drawn)]
            expected += weight * (0 in tied) / len(tied)
    answers = ["right"] * 12 + ["x"] * 9 + ["y"] * 4
    assert majority_at_k(answers, [1.0] * 12 + [0.0] * 13, k) == pytest.approx(expected, abs=1e-12)


def test_votes_by_hand():
    assert majority_at_k(["a", "b"], [1.0, 0.0], 2) == 0.5, "a tie is broken as a coin would"
    assert majority_at_k(["a", "a", "b"], [1.0, 1.0, 0.0], 3) == 1.0
    assert majority_at_k(["a", None, None], [1.0, 0.0, 0.0], 3) == 1.0, "who says nothing doesn't vote"
    assert majority_at_k([None, None], [0.0, 0.0], 2) == 0.0
    assert majority_at_k(["a", "a"], [1.0, 0.0], 1) == 0.5, "an answer is worth what its samples are"
    assert majority_at_k([str(i % 20) for i in range(2000)], [1.0] * 2000, 8) == 1.0, "large n are exact too"


def test_with_one_sample_of_k_the_vote_is_the_mean():
    answers, values = ["a", "b", "b", "c"], [1.0, 0.0, 0.0, 1.0]
    assert majority_at_k(answers, values, 1) == best_at_k(values, 1) == 0.5


@pytest.mark.parametrize("k", [0, 3])
def test_a_k_that_no_subset_has(k):
    for statistic in (lambda: best_at_k([0.5, 1.0], k), lambda: majority_at_k(["a", "b"], [1.0, 0.0], k)):
        with pytest.raises(ValueError):
            statistic()


def test_intervals_are_over_tasks_and_tasks_with_few_samples_are_counted():
    rng = np.random.default_rng(0)
    per_task = {f"t{i}": rng.integers(0, 2, 4).astype(float).tolist() for i in range(20)}
    per_task["lost"] = [1.0, 0.0]
    rows = at_k(per_task, None, (1, 4), 4)
    assert list(rows) == ["avg@4", "pass@1", "pass@4"]
    assert rows["avg@4"].interval == clustered_bootstrap(per_task, share=True)
    assert (rows["pass@4"].left_out, rows["pass@4"].interval.n, rows["pass@1"].left_out) == (1, 20, 0)
    assert rows["pass@4"].as_dict()["left_out"] == 1 and "left_out" not in rows["pass@1"].as_dict()
    assert rows["pass@1"].interval.mean == pytest.approx(rows["avg@4"].interval.mean)
    assert rows["pass@4"].interval.mean == pytest.approx(
        np.mean([max(v) for v in list(per_task.values())[:20]])
    )


def test_a_vote_needs_answers():
    per_task = {"a": [1.0, 0.0, 0.0], "b": [1.0, 1.0, 0.0]}
    silent = {task: [None] * 3 for task in per_task}
    assert "majority@3" not in at_k(per_task, silent, (3,), 3)
    answers = {"a": ["1", "2", "2"], "b": ["1", "1", "3"]}
    assert at_k(per_task, answers, (3,), 3)["majority@3"].interval.mean == 0.5


def test_the_default_ks_and_wrong_ones():
    assert (
        powers_of_two(1) == (1,)
        and powers_of_two(8) == (1, 2, 4, 8)
        and powers_of_two(10) == (1, 2, 4, 8, 10)
    )
    for ks in ((9,), (0,), (2, 2)):
        with pytest.raises(UserError, match="--k"):
            ks_of(ks, 8)
    assert ks_of([1, 8], 8) == (1, 8) and ks_of(None, 8) == (1, 2, 4, 8) and ks_of(None, 1) == ()
