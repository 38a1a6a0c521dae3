"""What a metric computes, on the answers and predictions of one target: arrays of equal length, row by row.

scikit-learn and scipy compute what they have. The rest is here: the Gini coefficient, MAPE, SMAPE, MAP@k, the
quadratic weighted kappa and the Jaccard score of words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.plugins.envs.data_science.metrics.libraries import pandas, scipy_stats, sklearn_metrics

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
