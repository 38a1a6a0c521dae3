"""Every metric is what its definition says, written out here, on random and on edge inputs."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings, strategies as st

pytest.importorskip("sklearn")

import sklearn.metrics

from coterie.plugins.envs.data_science.metrics.metric import (
    ALIASES,
    METRICS,
    map_at_k,
    metric_named,
    normalised_gini,
    quadratic_weighted_kappa,
)
from coterie.plugins.envs.data_science.metrics.scoring import score
from tests.plugins.envs.data_science.tables import answers_of, csv_of, scored, value_of, why_of

FEW = settings(max_examples=15)
EPS = 2.0**-52


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("answers")


def close(value: float, expected: float) -> bool:
    return math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-9)


def mean(values: Any) -> float:
    return statistics.fmean(values)


def f1(truth: Sequence[Any], guess: Sequence[Any], label: Any) -> float:
    right = sum(t == g == label for t, g in zip(truth, guess, strict=True))
    wrong = sum((t == label) != (g == label) for t, g in zip(truth, guess, strict=True))
    return 2 * right / (2 * right + wrong) if right + wrong else 0.0


def recall(truth: Sequence[Any], guess: Sequence[Any], label: Any) -> float:
    rows = [g for t, g in zip(truth, guess, strict=True) if t == label]
    return rows.count(label) / len(rows)


def pairs_in_order(truth: Sequence[float], scores: Sequence[float]) -> float:
    ones = [s for t, s in zip(truth, scores, strict=True) if t]
    zeros = [s for t, s in zip(truth, scores, strict=True) if not t]
    return mean((one > zero) + (one == zero) / 2 for one in ones for zero in zeros)


def ranks(values: Sequence[float]) -> list[float]:
    return [sum(v < value for v in values) + (values.count(value) + 1) / 2 for value in values]


def kappa(truth: Sequence[int], guess: Sequence[int]) -> float:
    """As the prompts define it: O and E over all grades, weights (i - j)^2 / (N - 1)^2."""
    grades = range(min(*truth, *guess), max(*truth, *guess) + 1)
    top = bottom = 0.0
    for i, j in itertools.product(grades, grades):
        weight = (i - j) ** 2 / (len(grades) - 1) ** 2
        observed = sum(t == i and g == j for t, g in zip(truth, guess, strict=True))
        top += weight * observed
        bottom += weight * truth.count(i) * guess.count(j) / len(truth)
    return 1 - top / bottom


def words(first: str, second: str) -> float:
    """As the prompt of tweet-sentiment-extraction has it."""
    a, b = set(first.lower().split()), set(second.lower().split())
    c = a & b
    return float(len(c)) / (len(a) + len(b) - len(c))


def per_row(measure: Callable[[float, float], float]) -> Callable[[Any, Any], float]:
    return lambda truth, guess: mean(map(measure, truth, guess))


DEFINITIONS: dict[str, Callable[[Any, Any], float]] = {
    "accuracy": per_row(lambda t, g: t == g),
    "balanced_accuracy": lambda t, g: mean(recall(t, g, label) for label in set(t)),
    "f1": lambda t, g: f1(t, g, 1),
    "f1_macro": lambda t, g: mean(f1(t, g, label) for label in {*t, *g}),
    "f1_micro": per_row(lambda t, g: t == g),
    "auc": pairs_in_order,
    "normalised_gini": lambda t, g: 2 * pairs_in_order(t, g) - 1,
    "log_loss": per_row(lambda t, g: -math.log(min(max(g if t else 1 - g, EPS), 1 - EPS))),
    "qwk": kappa,
    "rmse": lambda t, g: math.sqrt(mean((a - b) ** 2 for a, b in zip(t, g, strict=True))),
    "rmsle": lambda t, g: math.sqrt(
        mean((math.log(a + 1) - math.log(b + 1)) ** 2 for a, b in zip(t, g, strict=True))
    ),
    "mae": per_row(lambda t, g: abs(t - g)),
    "median_ae": lambda t, g: statistics.median(abs(a - b) for a, b in zip(t, g, strict=True)),
    "mape": per_row(lambda t, g: abs((t - g) / t)),
    "smape": per_row(lambda t, g: 200 * abs(t - g) / (abs(t) + abs(g)) if t or g else 0.0),
    "r2": lambda t, g: (
        1 - sum((a - b) ** 2 for a, b in zip(t, g, strict=True)) / sum((a - mean(t)) ** 2 for a in t)
    ),
    "pearson": statistics.correlation,
    "spearman": lambda t, g: statistics.correlation(ranks(t), ranks(g)),
    "jaccard": per_row(words),
}
"""Each metric on lists, without numpy. `map@k` and `multi_log_loss` have tests of their own."""

tenths = st.integers(-30, 30).map(lambda n: n / 10)
sizes = st.one_of(st.integers(0, 5).map(float), st.integers(0, 90).map(lambda n: n / 7))
labels = st.sampled_from(["cat", "Dog", "dog", "a b", "x_1"])
VALUES: dict[str, tuple[st.SearchStrategy[Any], st.SearchStrategy[Any]]] = {
    **dict.fromkeys(["accuracy", "balanced_accuracy", "f1_macro", "f1_micro"], (labels, labels)),
    "f1": (st.integers(0, 1), st.integers(0, 1)),
    "auc": (st.integers(0, 1), tenths),
    "normalised_gini": (st.integers(0, 1), tenths),
    "log_loss": (st.integers(0, 1), st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))),
    "qwk": (st.integers(-2, 4), st.integers(-2, 6)),
    "rmsle": (sizes, sizes),
    "mape": (tenths.filter(bool), tenths),
    "jaccard": (st.text("aAb .", min_size=1, max_size=6).filter(str.strip), st.text("aAb .", max_size=6)),
}
"""Answers and predictions of a row; of other metrics any numbers, equal ones among them."""


@pytest.mark.parametrize("metric", DEFINITIONS)
@FEW
@given(data=st.data())
def test_a_metric_is_its_definition(metric: str, folder: Path, data: st.DataObject):
    rows = data.draw(st.lists(st.tuples(*VALUES.get(metric, (tenths, tenths))), min_size=2, max_size=9))
    truth, guess = ([*column] for column in zip(*rows, strict=True))
    if metric in ("auc", "normalised_gini", "qwk", "r2", "pearson", "spearman"):
        assume(len(set(truth)) > 1)
    if metric in ("pearson", "spearman"):
        assume(len(set(guess)) > 1)
    if metric == "f1":
        assume(1 in truth)
    result = scored(folder, metric, truth, guess)
    if METRICS[metric].kind == "classification" and labels in VALUES[metric] and not {*truth} & {*guess}:
        assert "is no label" in result.why
    else:
        assert result.value is not None and close(result.value, DEFINITIONS[metric](truth, guess)), result


def test_every_metric_is_defined_here():
    assert {*DEFINITIONS, "map@k", "multi_log_loss"} == set(METRICS)


BEST_AND_WORST = [
    ("accuracy", ["a", "b"], ["a", "b"], 1.0, ["b", "a"], 0.0),
    ("balanced_accuracy", ["a", "a", "b"], ["a", "a", "b"], 1.0, ["b", "b", "a"], 0.0),
    ("f1", [1, 0, 1], [1, 0, 1], 1.0, [0, 1, 0], 0.0),
    ("f1_macro", ["a", "b"], ["a", "b"], 1.0, ["b", "a"], 0.0),
    ("f1_micro", ["a", "b"], ["a", "b"], 1.0, ["b", "a"], 0.0),
    ("auc", [0, 1, 1], [0.1, 0.2, 0.3], 1.0, [3, 2, 1], 0.0),
    ("normalised_gini", [0, 1, 5], [0.1, 0.2, 0.3], 1.0, [3, 2, 1], -1.0),
    ("log_loss", [0, 1], [0, 1], 0.0, [1, 0], -math.log(EPS)),
    ("qwk", [1, 2, 3], [1, 2, 3], 1.0, [3, 2, 1], -1.0),
    ("map@3", ["a", "b"], ["a", "b c"], 1.0, ["b", "a"], 0.0),
    ("rmse", [1, 2], [1, 2], 0.0, [4, 5], 3.0),
    ("rmsle", [0, 0], [0, 0], 0.0, [math.e - 1] * 2, 1.0),
    ("mae", [1, 2], [1, 2], 0.0, [4, 5], 3.0),
    ("median_ae", [1, 2, 3], [1, 2, 3], 0.0, [2, 3, 99], 1.0),
    ("mape", [1, -2], [1, -2], 0.0, [2, -4], 1.0),
    ("mape", [1e-20, 2], [1e-20, 2], 0.0, [2e-20, 2], 0.5),
    ("smape", [1, 0], [1, 0], 0.0, [-1, 2], 200.0),
    ("r2", [1, 2, 3], [1, 2, 3], 1.0, [3, 2, 1], -3.0),
    ("pearson", [1, 2, 4], [2, 4, 8], 1.0, [-1, -2, -4], -1.0),
    ("spearman", [1, 2, 4], [0, 7, 8], 1.0, [9, 8, 1], -1.0),
    ("jaccard", ["so good", "no"], ["Good so", "no"], 1.0, ["bad", "yes"], 0.0),
]


@pytest.mark.parametrize(("metric", "truth", "right", "best", "wrong", "worst"), BEST_AND_WORST)
def test_perfect_predictions_have_the_best_value_and_wrong_ones_a_worse(
    metric, truth, right, best, wrong, worst, tmp_path
):
    assert close(value_of(tmp_path, metric, truth, right), best)
    assert close(value_of(tmp_path, metric, truth, wrong), worst)
    higher = metric_named(metric).direction == "higher"
    assert (best > worst) == higher


def test_constant_predictions_have_the_value_of_no_knowledge(tmp_path):
    def constant(metric: str, truth: list[Any], value: Any) -> float:
        return value_of(tmp_path, metric, truth, [value] * len(truth))

    assert constant("auc", [0, 1, 1], 0.3) == 0.5
    assert close(constant("normalised_gini", [0, 1, 7], 0.3), 0.0)
    assert constant("qwk", [1, 2, 3], 2) == 0.0
    assert constant("r2", [1, 2, 3], 2) == 0.0
    assert close(constant("log_loss", [0, 1], 0.5), math.log(2))
    assert constant("balanced_accuracy", ["a", "a", "a", "b"], "a") == 0.5
    assert constant("f1", [1, 0], 0) == 0.0
    for metric in ("pearson", "spearman"):
        assert "all predictions are equal" in why_of(tmp_path, metric, [1, 2, 3], [2, 2, 2])


@FEW
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=2, max_size=5))
def test_gini_is_the_mean_over_all_orders_of_equal_predictions(rows):
    """The original sorts stably, so equal predictions keep the file's order; ours favours no order."""
    truth = [float(t) for t, _ in rows]
    assume(len(set(truth)) > 1)

    def original(order: Sequence[int], scores: Sequence[float]) -> float:
        ranked = sorted(order, key=lambda row: -scores[row])
        cumulative = itertools.accumulate(truth[row] for row in ranked)
        return (sum(cumulative) / sum(truth) - (len(rows) + 1) / 2) / len(rows)

    guess = [float(g) for _, g in rows]
    orders = list(itertools.permutations(range(len(rows))))
    expected = mean(original(order, guess) for order in orders) / original(orders[0], truth)
    import numpy as np

    assert close(normalised_gini(np.array(truth), np.array(guess)), expected)


@FEW
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=2, max_size=30))
def test_kappa_is_scikit_learn_s_where_all_grades_are_listed(rows):
    import numpy as np

    truth, guess = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    assume(len(set(truth)) > 1)
    expected = sklearn.metrics.cohen_kappa_score(truth, guess, labels=range(1, 7), weights="quadratic")
    assert close(quadratic_weighted_kappa(truth, guess), expected)


def test_kappa_counts_a_grade_that_nobody_got(tmp_path):
    """Between 1 and 3 lies a grade, though none has it: 1 for 3 is twice as far as 3 for 4."""
    truth, guess = [1, 3, 4, 4], [3, 3, 4, 3]
    assert close(value_of(tmp_path, "qwk", truth, guess), kappa(truth, guess))
    assert not close(
        kappa(truth, guess), sklearn.metrics.cohen_kappa_score(truth, guess, weights="quadratic")
    )


@FEW
@given(
    st.integers(1, 4),
    st.lists(
        st.tuples(
            st.lists(st.sampled_from("abcde"), min_size=1, max_size=3, unique=True),
            st.lists(st.sampled_from("abcdexy"), min_size=1, max_size=6),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_map_at_k_is_the_mean_of_average_precisions(k, rows):
    def precision(right: list[str], ranked: list[str]) -> float:
        """Sum over ranks of P(rank) where a right label is new, over min(m, k)."""
        ranked = [label if label not in ranked[:i] else "" for i, label in enumerate(ranked)][:k]
        hits = [label in right for label in ranked]
        return sum(mean(hits[: i + 1]) for i, hit in enumerate(hits) if hit) / min(len(right), k)

    truth, guess = zip(*rows, strict=True)
    assert close(map_at_k(truth, guess, k), mean(map(precision, truth, guess)))


def test_a_label_at_rank_r_counts_one_rth(tmp_path):
    truth = ["Dengue", "Malaria", "Lyme_disease"]
    ranked = ["Dengue Malaria", "Dengue Lyme_disease Malaria", "Dengue Malaria Tungiasis"]
    assert close(value_of(tmp_path, "map@3", truth, ranked), (1 + 1 / 3 + 0) / 3)
    assert "has more than 2 labels" in why_of(tmp_path, "map@2", truth, ranked)


@FEW
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(1, 20), min_size=3, max_size=3)),
        min_size=1,
        max_size=6,
    )
)
def test_loss_of_several_labels_is_that_of_the_right_one(folder, rows):
    truth, sizes = zip(*rows, strict=True)
    shares = [[size / sum(row) for size in row] for row in sizes]
    names = ["a", "b", "c"]
    ids = range(len(rows))
    hot = {name: [int(label == i) for label in truth] for i, name in enumerate(names)}
    submission = csv_of({"id": ids, **{name: [row[i] for row in shares] for i, name in enumerate(names)}})
    expected = mean(-math.log(row[label]) for label, row in zip(truth, shares, strict=True))
    by_columns = answers_of(folder, {"id": ids, **hot}, "multi_log_loss", targets=names)
    assert close(score(submission, by_columns).value, expected)
    column = {"id": ids, "winner": [names[label] for label in truth]}
    by_names = answers_of(folder, column, "multi_log_loss", targets=names, answer_column="winner")
    assert close(score(submission, by_names).value, expected)


def test_probabilities_that_nearly_sum_to_1_are_scaled(tmp_path):
    """The sample submission of lmsys-chatbot-arena has three times 0.33."""
    columns = {"id": [1], "a": [1], "b": [0], "c": [0]}
    answers = answers_of(tmp_path, columns, "multi_log_loss")
    assert close(score(csv_of(columns | {"a": [0.33], "b": [0.33], "c": [0.33]}), answers).value, math.log(3))
    result = score(csv_of(columns | {"a": [0.9], "b": [0.9], "c": [0.9]}), answers)
    assert "sum to 2.7" in result.why


@pytest.mark.parametrize(
    ("metric", "definition"),
    [("rmse", "rmse"), ("mcrmse", "rmse"), ("rmsle", "rmsle"), ("auc", "auc"), ("spearman", "spearman")],
)
def test_several_targets_count_by_their_mean(metric, definition, tmp_path):
    columns = {"id": [1, 2, 3, 4], "p": [0, 1, 1, 0], "q": [1, 0, 0, 0]}
    guess = {"q": [0.5, 0.25, 2, 1], "id": [1, 2, 3, 4], "p": [3, 1, 2, 0.5]}
    result = score(csv_of(guess), answers_of(tmp_path, columns, metric))
    expected = mean(DEFINITIONS[definition](columns[name], guess[name]) for name in "pq")
    assert result.value is not None and close(result.value, expected)


def test_names_may_be_written_otherwise():
    for name in ("ROC-AUC", " roc auc ", "AUC"):
        assert metric_named(name).name == "auc"
    assert {metric_named(name).name for name in ("MAP @ 3", "map-@3", "map@3")} == {"map@3"}
    assert {metric_named(name).name for name in ("S-MAPE", "smape", " s_mape ")} == {"smape"}
    assert metric_named("MAP@3").name == "map@3" and metric_named("map@12").form.k == 12
    assert [metric_named(name) for name in ("map@k", "map@0", "map@", "rmsee", "")] == [None] * 5
    assert set(ALIASES.values()) <= set(METRICS) and not set(ALIASES) & set(METRICS)


@pytest.mark.parametrize(
    ("metric", "truth", "words"),
    [
        ("auc", [1, 1], "all answers are equal"),
        ("auc", [0, 0], "all answers are equal"),
        ("auc", [0, 2], "is neither 0 nor 1"),
        ("normalised_gini", [0, 0], "all answers are equal"),
        ("normalised_gini", [-1, 2], "is below 0"),
        ("qwk", [2, 2], "all answers are equal"),
        ("qwk", [2, 2.5], "is no whole number"),
        ("r2", [2, 2], "all answers are equal"),
        ("pearson", [2, 2], "all answers are equal"),
        ("spearman", [2, 2], "all answers are equal"),
        ("f1", [0, 0], "no answer is positive"),
        ("mape", [0, 1], "is no divisor"),
        ("rmsle", [-0.5, 1], "is below 0"),
        ("rmse", ["", 1], "is a missing value"),
        ("accuracy", ["", "a"], "is a missing value"),
        ("map@3", ["", "a"], "is a missing value"),
    ],
)
def test_answers_for_which_a_metric_is_undefined_are_the_task_s_fault(metric, truth, words, tmp_path):
    from coterie.core.errors import DataError

    with pytest.raises(DataError, match=words) as caught:
        value_of(tmp_path, metric, truth, [1, 2])
    assert caught.value.field == "y" and "answers.csv" in str(caught.value)
