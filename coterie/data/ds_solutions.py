"""Metrics, and a plain model, for the tasks that `coterie data make ds-pack` writes; numpy alone.

The environment scores submissions with its own metrics. These here say what a pack's baselines and references
are worth, so that making a pack needs no extra.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
PENALTY = 1.0
"""Of the ridge regression."""
REFERENCE = "ridge regression (penalty 1) on standardised numbers and one-hot texts, means for missing cells"


def design(train: Mapping[str, Array], test: Mapping[str, Array]) -> tuple[Array, Array]:
    """Features for a linear model, [train rows, features] and [test rows, features], by what train has.

    A column of numbers is standardised; a missing cell becomes the mean, and a column of its own says where.
    A column of text becomes a column for each value.
    """
    parts: list[tuple[Array, Array]] = []
    for name, values in train.items():
        others = test[name]
        if values.dtype.kind == "f":
            mean, spread = float(np.nanmean(values)), float(np.nanstd(values)) or 1.0
            parts.append(tuple(np.nan_to_num((each - mean) / spread) for each in (values, others)))  # type: ignore[arg-type]
            if np.isnan(values).any():
                parts.append((np.isnan(values).astype(float), np.isnan(others).astype(float)))
        else:
            parts += [
                ((values == each).astype(float), (others == each).astype(float)) for each in np.unique(values)
            ]
    return np.column_stack([part[0] for part in parts]), np.column_stack([part[1] for part in parts])


def ridge(features: Array, targets: Array, test: Array) -> Array:
    """Predictions of ridge regression, in closed form; the intercept is not penalised.

    Args:
        features: [rows, features].
        targets: [rows] or [rows, outputs].
        test: [test rows, features].
    """
    centre, mean = features.mean(axis=0), targets.mean(axis=0)
    moved = features - centre
    gram = moved.T @ moved + PENALTY * np.eye(features.shape[1])
    result: Array = (test - centre) @ np.linalg.solve(gram, moved.T @ (targets - mean)) + mean
    return result


def accuracy(truth: Array, guess: Array) -> float:
    return float(np.mean(truth == guess))


def f1_macro(truth: Array, guess: Array) -> float:
    """The mean F1 over all labels of truth and guess."""
    values = []
    for label in np.union1d(truth, guess):
        right = np.sum((truth == label) & (guess == label))
        values.append(2 * right / (np.sum(truth == label) + np.sum(guess == label)))
    return float(np.mean(values))


def auc(truth: Array, guess: Array) -> float:
    """The share of pairs of a 1 and a 0 in which the 1 is guessed higher; equal guesses count half."""
    ones, zeros = guess[truth == 1], guess[truth == 0]
    above = np.sum(ones[:, None] > zeros) + 0.5 * np.sum(ones[:, None] == zeros)
    return float(above / (len(ones) * len(zeros)))


def quadratic_kappa(truth: Array, guess: Array) -> float:
    """Cohen's kappa with squared distances: 1 less the mean one over the mean one of independent draws."""
    expected = np.mean((truth[:, None] - guess) ** 2)
    return float(1 - np.mean((truth - guess) ** 2) / expected)


def map_at_3(truth: Array, guess: Array) -> float:
    """The mean of 1 / place of the right label among up to three guessed ones, `a b c`; 0 where it isn't."""
    values = []
    for label, listed in zip(truth, guess, strict=True):
        places = listed.split()[:3]
        values.append(1 / (places.index(label) + 1) if label in places else 0.0)
    return float(np.mean(values))


def rmse(truth: Array, guess: Array) -> float:
    return float(np.sqrt(np.mean((truth - guess) ** 2)))


def rmsle(truth: Array, guess: Array) -> float:
    return rmse(np.log1p(truth), np.log1p(guess))


def mae(truth: Array, guess: Array) -> float:
    return float(np.mean(np.abs(truth - guess)))


METRICS: Mapping[str, Callable[[Array, Array], float]] = {
    "accuracy": accuracy,
    "f1_macro": f1_macro,
    "auc": auc,
    "qwk": quadratic_kappa,
    "map@3": map_at_3,
    "rmse": rmse,
    "rmsle": rmsle,
    "mae": mae,
}
"""By the name in a record."""
