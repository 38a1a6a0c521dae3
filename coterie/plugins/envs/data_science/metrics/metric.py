"""Every metric by its name, and the names under which task records may ask for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from coterie.plugins.envs.data_science.metrics import measures
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMetric:
    """What a competition is scored by. Several targets count by the mean over them."""

    name: str
    direction: Direction
    kind: Kind
    form: ColumnReading
    measure: measures.Measure
    takes: str
    """What a submission contains, for the page."""
    joint: bool = False
    """The targets are probabilities of the labels of one column: the measure gets all of them at once."""


def _metric(
    name: str, direction: Direction, kind: Kind, form: ColumnReading, measure: measures.Measure, takes: str
) -> TaskMetric:
    return TaskMetric(name=name, direction=direction, kind=kind, form=form, measure=measure, takes=takes)


_LABELS, _NUMBERS = Labels(), Numbers()
_LOGS = Numbers(least=0.0, least_predicted=0.0)
_CORRELATED = Numbers(varied=True, varied_predictions=True)
_ONE_LABEL, _ONE_NUMBER = "a label", "a number"

_TABLE = (
    _metric("accuracy", "higher", "classification", _LABELS, measures.accuracy, _ONE_LABEL),
    _metric("balanced_accuracy", "higher", "classification", _LABELS, measures.balanced_accuracy, _ONE_LABEL),
    _metric("f1", "higher", "classification", Positives(), measures.f1_binary, "one of two labels"),
    _metric("f1_macro", "higher", "classification", _LABELS, measures.f1_macro, _ONE_LABEL),
    _metric("f1_micro", "higher", "classification", _LABELS, measures.f1_micro, _ONE_LABEL),
    _metric(
        "auc",
        "higher",
        "classification",
        TwoLabelScores(),
        measures.auc,
        "a number, higher for likelier rows",
    ),
    _metric(
        "normalised_gini",
        "higher",
        "classification",
        Numbers(least=0.0, varied=True),
        measures.normalised_gini,
        "a number, higher for likelier rows",
    ),
    _metric("log_loss", "lower", "classification", Probabilities(), measures.log_loss, "a probability"),
    TaskMetric(
        name="multi_log_loss",
        direction="lower",
        kind="classification",
        form=Probabilities(),
        measure=measures.log_loss,
        takes="a probability for each label, in a column of its own; together 1",
        joint=True,
    ),
    _metric("qwk", "higher", "classification", Grades(), measures.quadratic_weighted_kappa, "a whole number"),
    _metric(
        "map@k",
        "higher",
        "classification",
        Ranking(),
        partial(measures.map_at_k, k=1),
        "up to k labels, the best first, separated by spaces",
    ),
    _metric("rmse", "lower", "regression", _NUMBERS, measures.rmse, _ONE_NUMBER),
    _metric("rmsle", "lower", "regression", _LOGS, measures.rmsle, "a number of at least 0"),
    _metric("mae", "lower", "regression", _NUMBERS, measures.mae, _ONE_NUMBER),
    _metric("median_ae", "lower", "regression", _NUMBERS, measures.median_ae, _ONE_NUMBER),
    _metric("mape", "lower", "regression", Numbers(nonzero=True), measures.mape, _ONE_NUMBER),
    _metric("smape", "lower", "regression", _NUMBERS, measures.smape, _ONE_NUMBER),
    _metric("r2", "higher", "regression", Numbers(varied=True), measures.r2, _ONE_NUMBER),
    _metric("pearson", "higher", "regression", _CORRELATED, measures.pearson, "a number, not all equal"),
    _metric("spearman", "higher", "regression", _CORRELATED, measures.spearman, "a number, not all equal"),
    _metric("jaccard", "higher", "text", Text(), measures.jaccard, "words"),
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
    measure = partial(measures.map_at_k, k=k)
    return replace(METRICS["map@k"], name=name, form=Ranking(k), measure=measure)
