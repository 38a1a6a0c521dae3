"""Forms: what a metric takes as answers and as predictions, and how it reads them from a column of text."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coterie.plugins.envs.data_science.metrics.column import Invalid, TableColumn, label_of, number_of
from coterie.plugins.envs.data_science.metrics.competition import Competition

_SUM = 0.05
"""How far from 1 the probabilities of a row may sum. The sample submission of LMSYS has three times 0.33."""
_ROUNDING = 1e-9
"""Of sums of floats."""
_LISTED = 12
"""Labels that a message lists."""
_AS_IN_TRAIN = "write labels as the train set does"


class ColumnReading(Protocol):
    """How a metric reads a column."""

    def answers(self, column: TableColumn, competition: Competition) -> Any:
        """The answers, an array or a list.

        Raises:
            Invalid: the metric isn't defined for them.
        """

    def predictions(self, column: TableColumn, answers: Any, competition: Competition) -> Any:
        """The predictions of as many rows.

        Args:
            answers: what `answers` returned.

        Raises:
            Invalid: a value can't be scored.
        """


@dataclass(frozen=True, slots=True)
class Numbers:
    """Finite numbers."""

    least: float | None = None
    """Of the answers."""
    least_predicted: float | None = None
    nonzero: bool = False
    """No answer is 0, since the metric divides by it."""
    varied: bool = False
    """The answers are not all equal, since the metric compares with their mean or their order."""
    varied_predictions: bool = False

    def answers(self, column: TableColumn, competition: Competition) -> NDArray[np.float64]:
        values = _numbers(column, self.least)
        if self.nonzero:
            column.refuse(values == 0, "is no divisor", f"{competition.metric} divides by the answer")
        if self.varied and np.ptp(values) == 0:
            raise _equal(column, competition)
        return values

    def predictions(self, column: TableColumn, answers: Any, competition: Competition) -> NDArray[np.float64]:
        values = _numbers(column, self.least_predicted)
        if self.varied_predictions and np.ptp(values) == 0:
            raise Invalid(
                f"column '{column.name}': all predictions are equal, and a correlation is undefined then; "
                "predict values that differ",
                column=column.name,
            )
        return values


@dataclass(frozen=True, slots=True)
class TwoLabelScores:
    """Answers of two labels, and predictions of which only the order counts: any finite number."""

    def answers(self, column: TableColumn, competition: Competition) -> NDArray[np.float64]:
        positives = _positives(column, competition)
        if positives.all() or not positives.any():
            raise _equal(column, competition)
        return positives.astype(np.float64)

    def predictions(self, column: TableColumn, answers: Any, competition: Competition) -> NDArray[np.float64]:
        return column.numbers()


@dataclass(frozen=True, slots=True)
class Probabilities:
    """Answers of two labels, and the probability of the positive one."""

    def answers(self, column: TableColumn, competition: Competition) -> NDArray[np.float64]:
        return _positives(column, competition).astype(np.float64)

    def predictions(self, column: TableColumn, answers: Any, competition: Competition) -> NDArray[np.float64]:
        values = column.numbers()
        column.refuse((values < 0) | (values > 1), "is no probability", "write a number from 0 to 1")
        return values


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels, as text or as numbers.

    Where the competition names its labels, a prediction is one of them. Otherwise the answers' labels are all
    that is known, and the train set may have more. Then an unknown label counts as wrong; it is refused where
    it is of another kind than the answers' (a word, a whole number), or where no prediction is a known label.
    """

    def answers(self, column: TableColumn, competition: Competition) -> NDArray[np.object_]:
        return _labels(column, competition.labels) if competition.labels else _known_labels(column)

    def predictions(self, column: TableColumn, answers: Any, competition: Competition) -> NDArray[np.object_]:
        if competition.labels:
            return _labels(column, competition.labels)
        known = frozenset(answers)
        column.present(known)
        labels = column.map(label_of)
        _alike(TableColumn(column.name, labels, column.ids), known)
        return labels


@dataclass(frozen=True, slots=True)
class Positives:
    """Two labels, read as whether a row has the positive one."""

    def answers(self, column: TableColumn, competition: Competition) -> NDArray[np.bool_]:
        if competition.positive and not competition.labels:
            raise Invalid("F1 of a named label needs to know both: name them, `labels`", column=column.name)
        positives = _positives(column, competition)
        if not positives.any():
            raise Invalid("no answer is positive, and F1 is undefined then", column=column.name)
        return positives

    def predictions(self, column: TableColumn, answers: Any, competition: Competition) -> NDArray[np.bool_]:
        return _labels(column, competition.labels or ("0", "1")) == _positive(competition)


@dataclass(frozen=True, slots=True)
class Grades:
    """Whole numbers with an order."""

    def answers(self, column: TableColumn, competition: Competition) -> NDArray[np.float64]:
        words = [label for label in competition.labels if not _is_number(label)]
        if words:
            raise Invalid(f"'{words[0]}' is no grade: the labels are numbers", column=column.name)
        values = self.predictions(column, None, competition)
        if np.ptp(values) == 0:
            raise _equal(column, competition)
        return values

    def predictions(self, column: TableColumn, answers: Any, competition: Competition) -> NDArray[np.float64]:
        values = column.numbers()
        column.refuse(values != np.round(values), "is no whole number", "round it to a grade")
        if competition.labels:
            grades = [float(label) for label in competition.labels]
            column.refuse(
                ~np.isin(values, grades), "is no grade", f"the grades are {_listed(competition.labels)}"
            )
        return values


@dataclass(frozen=True, slots=True)
class Ranking:
    """One or more right labels, and up to `k` predicted ones, the best first, separated by spaces."""

    k: int = 1

    def answers(self, column: TableColumn, competition: Competition) -> NDArray[np.object_]:
        _filled(column)
        return self._split(column)

    def predictions(self, column: TableColumn, answers: Any, competition: Competition) -> NDArray[np.object_]:
        known = frozenset(map(label_of, competition.labels) if competition.labels else chain(*answers))
        column.present(known)
        ranked = self._split(column)
        many = np.array([len(labels) > self.k for labels in ranked], dtype=bool)
        column.refuse(many, f"has more than {self.k} labels", f"write the {self.k} likeliest, the best first")
        if known.isdisjoint(chain(*ranked)):
            column.refuse(np.ones(len(ranked), dtype=bool), "has no known label", _AS_IN_TRAIN)
        return ranked

    def _split(self, column: TableColumn) -> NDArray[np.object_]:
        return column.map(lambda cell: [label_of(label) for label in cell.split()])


@dataclass(frozen=True, slots=True)
class Text:
    """Any text; an empty one is a text without words."""

    def answers(self, column: TableColumn, competition: Competition) -> NDArray[np.object_]:
        return column.cells

    def predictions(self, column: TableColumn, answers: Any, competition: Competition) -> NDArray[np.object_]:
        return column.cells


def one_label_a_row(columns: list[TableColumn], competition: Competition) -> NDArray[np.int64]:
    """The number of each row's label, from columns with a 1 in one of them and a 0 in the others.

    Raises:
        Invalid: a row has none or several.
    """
    ones = np.stack([_positives(column, competition) for column in columns], axis=1)
    several = ones.sum(axis=1) != 1
    columns[0].refuse(several, "is in a row with none or several labels", "one target of a row is 1")
    return ones.argmax(axis=1)


def label_numbers(column: TableColumn, competition: Competition) -> NDArray[np.int64]:
    """The number of each row's label among the targets, from a column with the labels.

    Raises:
        Invalid: a label is no target.
    """
    targets = {label_of(target): number for number, target in enumerate(competition.targets)}
    labels = column.map(label_of)
    unknown = np.array([label not in targets for label in labels], dtype=bool)
    column.refuse(unknown, "is no target", f"the targets are {_listed(competition.targets)}")
    return np.array([targets[label] for label in labels], dtype=np.int64)


def distributions(columns: list[TableColumn], competition: Competition) -> NDArray[np.float64]:
    """Probabilities of all labels, each row scaled to the sum 1 as the competitions do; shape (rows, labels).

    Raises:
        Invalid: a value is no probability, or a row's sum is more than 0.05 from 1.
    """
    values = np.stack([Probabilities().predictions(column, None, competition) for column in columns], axis=1)
    sums = values.sum(axis=1)
    wrong = np.abs(sums - 1.0) > _SUM + _ROUNDING
    if wrong.any():
        row = int(np.argmax(wrong))
        columns[0].refuse(
            wrong,
            f"and the row's other probabilities sum to {sums[row]:.4g}",
            "a row's probabilities sum to 1",
        )
    return values / sums[:, None]


def _numbers(column: TableColumn, least: float | None) -> NDArray[np.float64]:
    values = column.numbers()
    if least is not None:
        column.refuse(values < least, f"is below {least:g}", f"the metric takes numbers from {least:g} on")
    return values


def _equal(column: TableColumn, competition: Competition) -> Invalid:
    return Invalid(f"all answers are equal, and {competition.metric} is undefined then", column=column.name)


def _filled(column: TableColumn) -> None:
    column.refuse(column.cells == "", "is a missing value", "every row needs one")


def _known_labels(column: TableColumn) -> NDArray[np.object_]:
    _filled(column)
    return column.map(label_of)


def _positive(competition: Competition) -> str:
    return label_of(competition.positive) if competition.positive else "1"


def _positives(column: TableColumn, competition: Competition) -> NDArray[np.bool_]:
    """Whether a row of answers has the positive label."""
    labels = _known_labels(column)
    if not competition.positive:
        other = ~np.isin(labels.astype(str), ("0", "1"))
        column.refuse(other, "is neither 0 nor 1", "or name the label that counts: `positive`")
    positives = labels == _positive(competition)
    if competition.positive and not positives.any():
        raise Invalid(f"no answer is '{competition.positive}', the label that counts", column=column.name)
    return positives


def _labels(column: TableColumn, known: tuple[str, ...]) -> NDArray[np.object_]:
    """Predictions, each of which is one of the known labels."""
    spelt = frozenset(map(label_of, known))
    column.present(spelt)
    labels = column.map(label_of)
    unknown = ~column.each(lambda cell: label_of(cell) in spelt)
    column.refuse(unknown, "is no label", f"the labels are {_listed(known)}")
    return labels


def _alike(column: TableColumn, known: frozenset[str]) -> None:
    """Refuse labels of another kind than the answers', and predictions of which none is a known label."""
    if not any(map(_is_number, known)):
        column.refuse(column.each(_is_number), "is a number", f"the labels are words: {_AS_IN_TRAIN}")
    elif all(map(_is_whole, known)):
        other = ~column.each(_is_whole)
        column.refuse(other, "is no whole number", f"the labels are whole numbers: {_AS_IN_TRAIN}")
    unknown = ~column.each(known.__contains__)
    if unknown.all():
        column.refuse(unknown, "is no label", _AS_IN_TRAIN)


def _is_number(label: str) -> bool:
    return bool(np.isfinite(number_of(label)))


def _is_whole(label: str) -> bool:
    return label.removeprefix("-").isdecimal()


def _listed(labels: tuple[str, ...]) -> str:
    """Labels for a message; of many the first ones."""
    shown = ", ".join(labels[:_LISTED])
    return shown if len(labels) <= _LISTED else f"{shown} and {len(labels) - _LISTED} more"
