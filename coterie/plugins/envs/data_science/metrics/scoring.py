"""Score a submission against the answers of its task, and sum up many results."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.plugins.envs.data_science.metrics.answers import AnswerTable, keys
from coterie.plugins.envs.data_science.metrics.column import Invalid, TableColumn
from coterie.plugins.envs.data_science.metrics.competition import Competition
from coterie.plugins.envs.data_science.metrics.forms import distributions
from coterie.plugins.envs.data_science.metrics.metric import Direction
from coterie.plugins.envs.data_science.metrics.submission import read_table, size_limit

_NAMED = 3
"""Ids that a message names."""
_SHOWN = 200
"""Characters of a name, or of several, that a message shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionResult:
    """What a submission is worth; an invalid one has a reason and no value.

    >>> SubmissionResult(metric="auc", direction="higher", value=0.81, quality=None, why="")
    """

    metric: str
    direction: Direction
    """Which values are better."""
    value: float | None
    """Of the metric, in its own unit; None: the submission is invalid."""
    quality: float | None
    """0 at the task's baseline or worse, 1 at its reference, above 1 beyond it; 0: the submission is invalid.

    None: the task has no baseline or no reference, so nothing is known.
    """
    why: str
    """Why it is invalid, for the role that wrote it; empty: it is valid."""

    @property
    def valid(self) -> bool:
        """Whether the submission could be scored."""
        return not self.why


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Many results together. Failures count."""

    submissions: int
    valid: int
    with_quality: int
    """Results of tasks that have a baseline and a reference."""
    success_rate: float | None
    """The share of valid submissions; None: there are none at all."""
    quality: float | None
    """The mean quality of `with_quality` results, 0 for each failure; None: there are none."""


def score(submission: Path | bytes, answers: AnswerTable) -> SubmissionResult:
    """Score a CSV file.

    What is wrong with the file is a result, and no error: `why` says it.

    Args:
        submission: its path or its content: a header, and a row for each id of the answers, in any order.
        answers: of the task.

    Raises:
        MissingExtra: extra `data-science` is not installed.
    """
    try:
        value = _value(submission, answers)
    except Invalid as error:
        return failed(answers.competition, answers.metric.direction, str(error))
    competition = answers.competition
    return SubmissionResult(
        metric=competition.metric,
        direction=answers.metric.direction,
        value=value,
        quality=competition.quality(value),
        why="",
    )


def failed(competition: Competition, direction: Direction, why: str) -> SubmissionResult:
    """The result of an invalid submission, or of none."""
    known = competition.baseline is not None and competition.reference is not None
    return SubmissionResult(
        metric=competition.metric, direction=direction, value=None, quality=0.0 if known else None, why=why
    )


def summarise(results: Sequence[SubmissionResult]) -> Summary:
    """Success rate and mean quality, failures included."""
    valid = sum(result.valid for result in results)
    qualities = [result.quality for result in results if result.quality is not None]
    return Summary(
        submissions=len(results),
        valid=valid,
        with_quality=len(qualities),
        success_rate=valid / len(results) if results else None,
        quality=math.fsum(qualities) / len(qualities) if qualities else None,
    )


def _value(submission: Path | bytes, answers: AnswerTable) -> float:
    competition, metric = answers.competition, answers.metric
    columns = _joined(submission, answers)
    with np.errstate(all="ignore"):  # an overflow is refused below
        if metric.joint:
            distributions(columns, competition)
            scored = [_counted(column, answers) for column in columns]
            value = metric.measure(answers.values[0], distributions(scored, competition))
        else:
            pairs = zip(columns, answers.values, strict=True)
            value = float(np.mean([_measured(column, known, answers) for column, known in pairs]))
    if not math.isfinite(value):
        raise Invalid(
            f"the predictions are too large, and {competition.metric} is {value}; predict smaller numbers"
        )
    return value


def _measured(column: TableColumn, known: Any, answers: AnswerTable) -> float:
    """The metric of a target. Rows that don't count need a valid prediction too."""
    form, competition = answers.metric.form, answers.competition
    predictions = form.predictions(column, known, competition)
    if not answers.scored.all():
        predictions = form.predictions(_counted(column, answers), known, competition)
    return answers.metric.measure(known, predictions)


def _counted(column: TableColumn, answers: AnswerTable) -> TableColumn:
    return TableColumn(column.name, column.cells[answers.scored], column.ids[answers.scored])


def _joined(submission: Path | bytes, answers: AnswerTable) -> list[TableColumn]:
    """The targets' columns of a submission, in the order of the answers' rows.

    Raises:
        Invalid: columns or ids are not those of the task.
    """
    competition = answers.competition
    rows = (
        len(answers.ids) + 1
    )  # a further row has an id that is unknown or there twice; more need no reading
    cells = read_table(
        submission,
        check=lambda header: _check_header(header, competition),
        most_rows=rows,
        most_bytes=size_limit(rows * (1 + len(competition.targets))),
    )
    cells = {competition.also.get(name, name): column for name, column in cells.items()}
    place = _places(cells[competition.id], answers)
    return [TableColumn(target, cells[target][place], answers.ids) for target in competition.targets]


def _check_header(header: list[str], competition: Competition) -> None:
    """Refuse a file that lacks a column or has another one."""
    expected = (competition.id, *competition.targets)
    names = [competition.also.get(name, name) for name in header]
    wanted = f"the columns are {', '.join(expected)}"
    lacking = [name for name in expected if name not in names]
    if lacking:
        shown = ", ".join(map(repr, header))
        raise Invalid(f"there is no column '{lacking[0]}'; {wanted}, and the file has {shown[:_SHOWN]}")
    for number, name in enumerate(names):
        if not name:
            raise Invalid(
                f"a column has no name; {wanted}: write them alone, with `to_csv(..., index=False)`"
            )
        if name not in expected:
            raise Invalid(f"there is a further column '{name[:_SHOWN]}'; {wanted}: write them alone")
        if name in names[:number]:
            raise Invalid(f"the column '{name}' is there twice, as '{header[number]}' too; {wanted}")


def _places(ids: NDArray[np.object_], answers: AnswerTable) -> NDArray[np.intp]:
    """The row of a submission for each row of the answers.

    Raises:
        Invalid: ids are unknown, repeated or missing.
    """
    count = len(answers.ids)
    needed = f"write a row for each of the {count:,} ids of the test set, and no other"
    if not len(ids):
        raise Invalid(f"there is no row below the header; {needed}")
    given = keys(ids, answers.numeric)
    unknown = answers.index.get_indexer(given) < 0
    _refuse(ids[unknown], f"not in the test set, whose first id is {answers.ids[0]}", needed)
    _refuse(ids[given.duplicated()], "there more than once", needed)
    place = given.get_indexer(answers.index)
    _refuse(answers.ids[place < 0], "missing", needed)
    return place


def _refuse(ids: NDArray[np.object_], what: str, needed: str) -> None:
    if not len(ids):
        return
    named = ", ".join(_shown(str(name)) for name in ids[:_NAMED])
    which = f"the id {named} is {what}" if len(ids) == 1 else f"{len(ids):,} ids are {what} (such as {named})"
    raise Invalid(f"{which}; {needed}")


def _shown(name: str) -> str:
    """An id in a sentence: a policy wrote it, so what is no plain word is quoted, and it is on one line."""
    return name[:_SHOWN] if re.fullmatch(r"[\w.+-]+", name[:_SHOWN]) else repr(name[:_SHOWN])
