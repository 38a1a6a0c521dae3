"""Every metric by its name, the names under which task records may ask for it, and what it computes.

A measure takes the answers and predictions of one target: arrays of equal length, row by row. scikit-learn
and scipy compute what they have. The rest is here: the Gini coefficient, MAPE, SMAPE, MAP@k, the quadratic
weighted kappa and the Jaccard score of words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.plugins.envs.data_science.metrics.column import pandas, scipy_stats, sklearn_metrics
from coterie.plugins.envs.data_science.metrics.forms import (
    ColumnReading,
    Grades,
    Labels,
    Numbers,
    Positives,
    Probabilities,
    Ranking,
    Text,
    TwoLabelScores,
)

Direction = Literal["higher", "lower"]
"""Which values are better."""
Kind = Literal["classification", "regression", "text"]
"""What is predicted: one of some labels or its probability, a number, or words."""


Measure = Callable[[Any, Any], float]
"""(answers, predictions) -> the metric's value."""


def accuracy(answers: Any, predictions: Any) -> float:
    """The share of equal labels."""
    return float(np.mean(answers == predictions))


def balanced_accuracy(answers: Any, predictions: Any) -> float:
    """The mean over the answers' labels of the share of their rows that are right."""
    truth, guess = _codes(answers, predictions)
    # balanced_accuracy_score is this recall, and warns of labels that are only predicted.
    labels = np.unique(truth)
    metrics = sklearn_metrics()
    return float(metrics.recall_score(truth, guess, labels=labels, average="macro", zero_division=0))


def f1_binary(answers: Any, predictions: Any) -> float:
    """F1 of the positive rows, given as booleans; 0 where none is right."""
    return float(sklearn_metrics().f1_score(answers, predictions, zero_division=0))


def f1_macro(answers: Any, predictions: Any) -> float:
    """The mean F1 over all labels of answers and predictions."""
    return _f1(answers, predictions, "macro")


def f1_micro(answers: Any, predictions: Any) -> float:
    """F1 of all labels' counts together: with one label a row, the accuracy."""
    return _f1(answers, predictions, "micro")


def auc(answers: Any, predictions: Any) -> float:
    """The area under the ROC curve: a pair with equal predictions counts half."""
    return float(sklearn_metrics().roc_auc_score(answers, predictions))


def normalised_gini(answers: NDArray[np.float64], predictions: NDArray[np.float64]) -> float:
    """The Gini coefficient of the predictions' order, over that of the answers' own order.

    Rows with equal predictions each count with their mean answer, so the order of rows changes nothing. For
    answers of 0 and 1 it is 2 AUC - 1.
    """
    return _gini(answers, predictions) / _gini(answers, answers)


def log_loss(answers: Any, predictions: Any) -> float:
    """The mean negative logarithm of the probability of what happened, clipped away from 0 and 1.

    `predictions` has shape (rows,), of the positive label, or (rows, labels).
    """
    labels = range(predictions.shape[1]) if predictions.ndim == 2 else (0, 1)
    return float(sklearn_metrics().log_loss(answers, predictions, labels=list(labels)))


def quadratic_weighted_kappa(answers: NDArray[np.float64], predictions: NDArray[np.float64]) -> float:
    """1 - (mean squared difference in a row) / (the same of rows that are paired at random).

    This is the kappa with weights (i - j)^2 of the grades themselves. scikit-learn's weighs positions in the
    list of grades that occur, so there a grade that nobody got moves the others together.
    """
    spread = answers.var() + predictions.var() + (answers.mean() - predictions.mean()) ** 2
    return float(1.0 - np.mean((answers - predictions) ** 2) / spread)


def rmse(answers: Any, predictions: Any) -> float:
    """The root of the mean squared error."""
    return float(sklearn_metrics().root_mean_squared_error(answers, predictions))


def rmsle(answers: Any, predictions: Any) -> float:
    """The root of the mean squared difference of log(1 + x)."""
    return float(sklearn_metrics().root_mean_squared_log_error(answers, predictions))


def mae(answers: Any, predictions: Any) -> float:
    """The mean absolute error."""
    return float(sklearn_metrics().mean_absolute_error(answers, predictions))


def median_ae(answers: Any, predictions: Any) -> float:
    """The median absolute error."""
    return float(sklearn_metrics().median_absolute_error(answers, predictions))


def mape(answers: Any, predictions: Any) -> float:
    """The mean absolute error as a share of the answer; no percentage."""
    # scikit-learn's divides by at least 2.2e-16, whatever the answer is.
    return float(np.mean(np.abs(answers - predictions) / np.abs(answers)))


def smape(answers: NDArray[np.float64], predictions: NDArray[np.float64]) -> float:
    """100 times the mean of |a - p| / ((|a| + |p|) / 2), from 0 to 200; 0 in rows where both are 0."""
    size = np.abs(answers) + np.abs(predictions)
    return float(200.0 * np.mean(np.abs(answers - predictions) / np.where(size > 0, size, 1.0)))


def r2(answers: Any, predictions: Any) -> float:
    """1 - (squared error) / (squared error of the answers' mean)."""
    return float(sklearn_metrics().r2_score(answers, predictions))


def pearson(answers: Any, predictions: Any) -> float:
    """The linear correlation."""
    return float(scipy_stats().pearsonr(answers, predictions).statistic)


def spearman(answers: Any, predictions: Any) -> float:
    """The correlation of ranks; equal values share their mean rank."""
    return float(scipy_stats().spearmanr(answers, predictions).statistic)


def map_at_k(answers: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]], k: int) -> float:
    """The mean average precision of ranked labels, of which the first k count.

    With one right label it is 1 / its rank, or 0 where it isn't listed. With m of them it is the sum, over
    ranks with a right label, of the share of right labels so far, over min(m, k). A label counts once.
    """
    return float(np.mean([_precision(*row, k) for row in zip(answers, predictions, strict=True)]))


def jaccard(answers: Sequence[str], predictions: Sequence[str]) -> float:
    """The mean share of common words in all words of two texts, in lower case; two empty texts are equal."""
    return float(np.mean([_common(*row) for row in zip(answers, predictions, strict=True)]))


def _codes(answers: Any, predictions: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Both columns of labels as numbers, which are compared faster than text."""
    codes, _ = pandas().factorize(np.concatenate([answers, predictions]))
    return codes[: len(answers)], codes[len(answers) :]


def _f1(answers: Any, predictions: Any, average: str) -> float:
    truth, guess = _codes(answers, predictions)
    return float(sklearn_metrics().f1_score(truth, guess, average=average, zero_division=0))


def _gini(answers: NDArray[np.float64], predictions: NDArray[np.float64]) -> float:
    """The area between the answers' cumulative share, from the largest prediction on, and a line."""
    _, group = np.unique(-predictions, return_inverse=True)
    means = np.bincount(group, weights=answers) / np.bincount(group)
    shares = np.cumsum(means[np.sort(group)]) / answers.sum()
    return float(shares.sum() - (len(answers) + 1) / 2)


def _precision(answer: Sequence[str], ranked: Sequence[str], k: int) -> float:
    hits, total = 0, 0.0
    for rank, label in enumerate(ranked[:k], 1):
        if label in answer and label not in ranked[: rank - 1]:
            hits += 1
            total += hits / rank
    return total / min(len(answer), k)


def _common(first: str, second: str) -> float:
    left, right = set(first.lower().split()), set(second.lower().split())
    return len(left & right) / len(left | right) if left | right else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMetric:
    """What a competition is scored by. Several targets count by the mean over them."""

    name: str
    direction: Direction
    kind: Kind
    form: ColumnReading
    measure: Measure
    takes: str
    """What a submission contains, for the page."""
    joint: bool = False
    """The targets are probabilities of the labels of one column: the measure gets all of them at once."""


def _metric(
    name: str, direction: Direction, kind: Kind, form: ColumnReading, measure: Measure, takes: str
) -> TaskMetric:
    return TaskMetric(name=name, direction=direction, kind=kind, form=form, measure=measure, takes=takes)


_LABELS, _NUMBERS = Labels(), Numbers()
_LOGS = Numbers(least=0.0, least_predicted=0.0)
_CORRELATED = Numbers(varied=True, varied_predictions=True)
_ONE_LABEL, _ONE_NUMBER = "a label", "a number"

_TABLE = (
    _metric("accuracy", "higher", "classification", _LABELS, accuracy, _ONE_LABEL),
    _metric("balanced_accuracy", "higher", "classification", _LABELS, balanced_accuracy, _ONE_LABEL),
    _metric("f1", "higher", "classification", Positives(), f1_binary, "one of two labels"),
    _metric("f1_macro", "higher", "classification", _LABELS, f1_macro, _ONE_LABEL),
    _metric("f1_micro", "higher", "classification", _LABELS, f1_micro, _ONE_LABEL),
    _metric(
        "auc",
        "higher",
        "classification",
        TwoLabelScores(),
        auc,
        "a number, higher for likelier rows",
    ),
    _metric(
        "normalised_gini",
        "higher",
        "classification",
        Numbers(least=0.0, varied=True),
        normalised_gini,
        "a number, higher for likelier rows",
    ),
    _metric("log_loss", "lower", "classification", Probabilities(), log_loss, "a probability"),
    TaskMetric(
        name="multi_log_loss",
        direction="lower",
        kind="classification",
        form=Probabilities(),
        measure=log_loss,
        takes="a probability for each label, in a column of its own; together 1",
        joint=True,
    ),
    _metric("qwk", "higher", "classification", Grades(), quadratic_weighted_kappa, "a whole number"),
    _metric(
        "map@k",
        "higher",
        "classification",
        Ranking(),
        partial(map_at_k, k=1),
        "up to k labels, the best first, separated by spaces",
    ),
    _metric("rmse", "lower", "regression", _NUMBERS, rmse, _ONE_NUMBER),
    _metric("rmsle", "lower", "regression", _LOGS, rmsle, "a number of at least 0"),
    _metric("mae", "lower", "regression", _NUMBERS, mae, _ONE_NUMBER),
    _metric("median_ae", "lower", "regression", _NUMBERS, median_ae, _ONE_NUMBER),
    _metric("mape", "lower", "regression", Numbers(nonzero=True), mape, _ONE_NUMBER),
    _metric("smape", "lower", "regression", _NUMBERS, smape, _ONE_NUMBER),
    _metric("r2", "higher", "regression", Numbers(varied=True), r2, _ONE_NUMBER),
    _metric("pearson", "higher", "regression", _CORRELATED, pearson, "a number, not all equal"),
    _metric("spearman", "higher", "regression", _CORRELATED, spearman, "a number, not all equal"),
    _metric("jaccard", "higher", "text", Text(), jaccard, "words"),
)
METRICS: Mapping[str, TaskMetric] = {metric.name: metric for metric in _TABLE}
"""Every metric by its name; `map@k` stands for `map@1`, `map@2`, ..."""

ALIASES: Mapping[str, str] = {
    "roc_auc": "auc",
    "mean_auc": "auc",
    "auc_roc": "auc",
    "f1_binary": "f1",
    "macro_f1": "f1_macro",
    "micro_f1": "f1_micro",
    "gini": "normalised_gini",
    "normalized_gini": "normalised_gini",
    "logloss": "log_loss",
    "multiclass_log_loss": "multi_log_loss",
    "multi_logloss": "multi_log_loss",
    "quadratic_weighted_kappa": "qwk",
    "mcrmse": "rmse",
    "mcrmsle": "rmsle",
    "medae": "median_ae",
    "median_absolute_error": "median_ae",
    "mean_absolute_error": "mae",
    "r2_score": "r2",
}
"""Other names. The mean over columns is what several targets mean anyway."""


def _squashed(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name.lower())


_SQUASHED = {_squashed(name): name for name in (*METRICS, *ALIASES)}


def metric_named(text: str) -> TaskMetric | None:
    """The metric of a name such as `rmsle`, `ROC-AUC` or `MAP@3`; None: there is none.

    Case, spaces, hyphens and underscores count nothing.
    """
    name = _SQUASHED.get(_squashed(text), _squashed(text))
    ranked = re.fullmatch(r"map@([1-9]\d{0,3})", name)
    if ranked is None:
        return METRICS.get(ALIASES.get(name, name)) if name != "map@k" else None
    k = int(ranked[1])
    measure = partial(map_at_k, k=k)
    return replace(METRICS["map@k"], name=name, form=Ranking(k), measure=measure)
