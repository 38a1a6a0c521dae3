"""Synthetic tables for data-science tasks: what each family draws, its baseline and its reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from coterie.data.ds_solutions import METRICS, REFERENCE, Array, design, ridge

TRAIN, TEST = 320, 160
"""Rows."""
NUMBERS = ("f0", "f1", "f2", "f3", "f4")
"""Columns of numbers; the last two say nothing of the target."""
GROUPS = ("amber", "birch", "cedar", "dune")
LEAK = "final_reading"
"""The column that is the target in train and noise in test."""
_DIGITS = 4


@dataclass(slots=True)
class Table:
    """Rows of one task, train and then test; numbers are as the CSV files have them."""

    columns: dict[str, Array]
    target: Array

    def rows(self, part: Literal["train", "test"]) -> tuple[dict[str, Array], Array]:
        """The features and the target of a part."""
        rows = slice(TRAIN) if part == "train" else slice(TRAIN, None)
        return {name: values[rows] for name, values in self.columns.items()}, self.target[rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Tasks that are drawn, scored and solved alike."""

    name: str
    data_type: Literal["classification", "regression"]
    metric: str
    story: str
    """What the prompt says of the target."""
    evaluation: str
    """What the prompt says of the metric."""
    draw: Callable[[np.random.Generator], Table]
    constant: Callable[[Array], Any]
    """From train's targets to the one value that the baseline predicts for every row."""
    constant_is: str
    solve: Callable[[Array, Array, Array], Array]
    """Predictions, from train's features and targets and test's features."""
    hidden: tuple[str, ...] = ()
    """Columns that the reference leaves out."""

    def baseline(self, table: Table) -> Array:
        """The constant prediction for every row of test."""
        _, targets = table.rows("train")
        return np.array([self.constant(targets)] * TEST)

    def reference(self, table: Table) -> Array:
        """The predictions of a plain model for test, rounded as they are written."""
        (train, targets), (test, _) = table.rows("train"), table.rows("test")
        kept = [name for name in train if name not in self.hidden]
        parts = design({name: train[name] for name in kept}, {name: test[name] for name in kept})
        guess = self.solve(parts[0], targets, parts[1])
        return np.round(guess, 6) if guess.dtype.kind == "f" else guess

    @property
    def reference_is(self) -> str:
        """How the reference was made."""
        return REFERENCE + "".join(f", without {name}" for name in self.hidden)

    def score(self, table: Table, guess: Array) -> float:
        """The metric of predictions for test."""
        return round(METRICS[self.metric](table.rows("test")[1], guess), 6)


# ----------------------------------------------------------------------------------------------------- tables


def _features(rng: np.random.Generator) -> dict[str, Array]:
    scales = rng.uniform(1, 20, len(NUMBERS))
    numbers = rng.normal(rng.uniform(-5, 5, len(NUMBERS)), scales, (TRAIN + TEST, len(NUMBERS)))
    columns: dict[str, Array] = dict(zip(NUMBERS, np.round(numbers, _DIGITS).T, strict=True))
    columns["group"] = rng.choice(GROUPS, TRAIN + TEST)
    return columns


def _signal(rng: np.random.Generator, columns: Mapping[str, Array]) -> Array:
    """A linear function of the telling columns, with mean 0 and variance 1 over all rows."""
    weights = rng.uniform(0.6, 1.4, 3) * rng.choice([-1, 1], 3)
    effects = dict(zip(GROUPS, rng.normal(0, 0.7, len(GROUPS)), strict=True))
    total = np.array([effects[group] for group in columns["group"]])
    for name, weight in zip(NUMBERS, weights, strict=False):
        values = columns[name]
        total = total + weight * (values - values.mean()) / values.std()
    result: Array = (total - total.mean()) / total.std()
    return result


def _noisy(rng: np.random.Generator, noise: float) -> tuple[dict[str, Array], Array]:
    """Features, and their signal with noise of that standard deviation."""
    columns = _features(rng)
    return columns, _signal(rng, columns) + noise * rng.normal(size=TRAIN + TEST)


def _binary(rng: np.random.Generator) -> Table:
    columns, signal = _noisy(rng, 0.4)
    return Table(columns, np.where(signal > np.quantile(signal, 0.6), "yes", "no"))


def _probability(rng: np.random.Generator) -> Table:
    columns, signal = _noisy(rng, 0.0)
    return Table(columns, (rng.random(TRAIN + TEST) < 1 / (1 + np.exp(-2.5 * signal))).astype(int))


def _labels(labels: tuple[str, ...], noise: float) -> Callable[[np.random.Generator], Table]:
    def draw(rng: np.random.Generator) -> Table:
        columns = _features(rng)
        signals = np.column_stack([_signal(rng, columns) for _ in labels])
        return Table(
            columns, np.array(labels)[np.argmax(signals + noise * rng.normal(size=signals.shape), axis=1)]
        )

    return draw


def _regression(rng: np.random.Generator) -> Table:
    columns, signal = _noisy(rng, 0.35)
    return Table(columns, np.round(50 + 12 * signal, 2))


def _skewed(rng: np.random.Generator) -> Table:
    columns, signal = _noisy(rng, 0.35)
    return Table(columns, np.round(np.exp(3 + 0.8 * signal), 2))


def _ordinal(rng: np.random.Generator) -> Table:
    columns, signal = _noisy(rng, 0.35)
    return Table(columns, 1 + np.searchsorted(np.quantile(signal, [0.1, 0.3, 0.6, 0.85]), signal))


def _missing(rng: np.random.Generator) -> Table:
    """Cells are missing at random in two columns; in a third more often where the target is large."""
    table = _regression(rng)
    large = table.target > np.quantile(table.target, 0.7)
    for name, share in (("f0", 0.1), ("f3", 0.2), ("f2", np.where(large, 0.6, 0.05))):
        table.columns[name] = np.where(rng.random(TRAIN + TEST) < share, np.nan, table.columns[name])
    return table


def _leak(rng: np.random.Generator) -> Table:
    table = _regression(rng)
    drawn = np.round(rng.normal(table.target.mean(), table.target.std(), TRAIN + TEST), 2)
    table.columns[LEAK] = np.where(np.arange(TRAIN + TEST) < TRAIN, table.target, drawn)
    return table


# -------------------------------------------------------------------------------------------------- solutions


def _frequent(targets: Array) -> Any:
    """The most frequent value; of several the first in their order."""
    values, counts = np.unique(targets, return_counts=True)
    return values[np.argmax(counts)]


def _three_frequent(targets: Array) -> str:
    values, counts = np.unique(targets, return_counts=True)
    return " ".join(values[np.argsort(-counts, kind="stable")][:3])


def _by_label(features: Array, targets: Array, test: Array) -> tuple[Array, Array]:
    """The labels, and a score of each, [test rows, labels]."""
    labels = np.unique(targets)
    return labels, ridge(features, (targets[:, None] == labels).astype(float), test)


def _label(features: Array, targets: Array, test: Array) -> Array:
    labels, scores = _by_label(features, targets, test)
    result: Array = labels[np.argmax(scores, axis=1)]
    return result


def _three_labels(features: Array, targets: Array, test: Array) -> Array:
    labels, scores = _by_label(features, targets, test)
    return np.array([" ".join(labels[row[:3]]) for row in np.argsort(-scores, axis=1, kind="stable")])


def _clipped(features: Array, targets: Array, test: Array) -> Array:
    return np.clip(ridge(features, targets.astype(float), test), 0, 1)


def _logs(features: Array, targets: Array, test: Array) -> Array:
    return np.maximum(np.expm1(ridge(features, np.log1p(targets), test)), 0)


def _grades(features: Array, targets: Array, test: Array) -> Array:
    guess = np.rint(ridge(features, targets.astype(float), test))
    return np.clip(guess, targets.min(), targets.max()).astype(int)


def _mean(targets: Array) -> float:
    return round(float(np.mean(targets)), 6)


def _mean_of_logs(targets: Array) -> float:
    return round(float(np.expm1(np.mean(np.log1p(targets)))), 6)


def _median(targets: Array) -> float:
    return round(float(np.median(targets)), 6)


# --------------------------------------------------------------------------------------------------- families

_RMSE = "root mean squared error (RMSE) between the predicted and the observed target. Lower is better."
FAMILIES = (
    Family(
        name="binary",
        data_type="classification",
        metric="accuracy",
        story="The target is `yes` or `no`.",
        evaluation="accuracy, the share of rows whose label is right. Higher is better.",
        draw=_binary,
        constant=_frequent,
        constant_is="train's most frequent label",
        solve=_label,
    ),
    Family(
        name="regression",
        data_type="regression",
        metric="rmse",
        story="The target is a number.",
        evaluation=_RMSE,
        draw=_regression,
        constant=_mean,
        constant_is="train's mean",
        solve=ridge,
    ),
    Family(
        name="ordinal",
        data_type="classification",
        metric="qwk",
        story="The target is a grade from 1 to 5, in this order.",
        evaluation="quadratic weighted kappa between predicted and observed grades, which are whole numbers. "
        "Higher is better.",
        draw=_ordinal,
        constant=_frequent,
        constant_is="train's most frequent grade",
        solve=_grades,
    ),
    Family(
        name="leak",
        data_type="regression",
        metric="rmse",
        story="The target is a number. Columns may have been recorded at different times.",
        evaluation=_RMSE,
        draw=_leak,
        constant=_mean,
        constant_is="train's mean",
        solve=ridge,
        hidden=(LEAK,),
    ),
    Family(
        name="ranking",
        data_type="classification",
        metric="map@3",
        story="The target is one of six labels.",
        evaluation="MAP@3, the mean average precision at 3: predict up to three labels a row, the likeliest "
        "first, separated by spaces. Higher is better.",
        draw=_labels(("fern", "holly", "iris", "lotus", "moss", "reed"), 1.2),
        constant=_three_frequent,
        constant_is="train's three most frequent labels",
        solve=_three_labels,
    ),
    Family(
        name="missing",
        data_type="regression",
        metric="mae",
        story="The target is a number. Some cells are missing.",
        evaluation="mean absolute error (MAE) between the predicted and the observed target. Lower is "
        "better.",
        draw=_missing,
        constant=_median,
        constant_is="train's median",
        solve=ridge,
    ),
    Family(
        name="probability",
        data_type="classification",
        metric="auc",
        story="The target is 0 or 1.",
        evaluation="the area under the ROC curve (AUC) between the predicted probability of 1 and the "
        "observed target. Higher is better.",
        draw=_probability,
        constant=lambda targets: 0.5,
        constant_is="0.5 for every row",
        solve=_clipped,
    ),
    Family(
        name="skewed",
        data_type="regression",
        metric="rmsle",
        story="The target is a number above 0, a few times very large.",
        evaluation="root mean squared logarithmic error (RMSLE) between the predicted and the observed "
        "target. Lower is better.",
        draw=_skewed,
        constant=_mean_of_logs,
        constant_is="the mean of train's logarithms",
        solve=_logs,
    ),
    Family(
        name="multiclass",
        data_type="classification",
        metric="f1_macro",
        story="The target is one of three labels.",
        evaluation="the macro F1 score, the mean F1 over the labels. Higher is better.",
        draw=_labels(("blue", "green", "red"), 0.5),
        constant=_frequent,
        constant_is="train's most frequent label",
        solve=_label,
    ),
)
"""In the order in which a pack's tasks take them."""
