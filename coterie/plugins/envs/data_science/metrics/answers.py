"""The answers of a task, read and checked once, to score any number of submissions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import DataError, did_you_mean
from coterie.plugins.envs.data_science.metrics.column import (
    EXACT,
    Invalid,
    TableColumn,
    label_of,
    pandas,
    parsed,
)
from coterie.plugins.envs.data_science.metrics.competition import Competition
from coterie.plugins.envs.data_science.metrics.forms import label_numbers, one_label_a_row
from coterie.plugins.envs.data_science.metrics.metric import TaskMetric, metric_named
from coterie.plugins.envs.data_science.metrics.submission import Cells, read_table


@dataclass(frozen=True, slots=True, eq=False)
class AnswerTable:
    """What submissions are compared with; made by `read_answers`."""

    competition: Competition
    """With its id column and targets, also where the record names none."""
    metric: TaskMetric
    ids: NDArray[np.object_]
    """Shape (rows,), as text, in the file's order."""
    numeric: bool
    """All ids are numbers, so that `1`, `01` and `1.0` are the same."""
    index: Any
    """`keys` of the ids."""
    scored: NDArray[np.bool_]
    """Which rows count: those of the row filter."""
    values: tuple[Any, ...]
    """The scored rows' answers of each target, as the metric's form reads them.

    Of a joint metric a single item: the number of each row's label.
    """


def read_answers(competition: Competition, file: Path, *, features: Path | None = None) -> AnswerTable:
    """Read the answers of a task.

    Args:
        competition: from `competition_of`.
        file: the answers, CSV with a header: the id column and the targets, perhaps others.
        features: the test set, which has the row filter's column where the answers lack it.

    Raises:
        DataError: a column or an id is missing, an id is there twice, or the metric is undefined here.
        MissingExtra: extra `data-science` is not installed.
    """
    metric = metric_named(competition.metric)
    if metric is None:
        raise ValueError(f"no metric '{competition.metric}': make the competition with competition_of")
    try:
        names = list(read_table(file, most_rows=0, follow=True))
        competition = _complete(competition, metric, names)
        needed = {competition.id, *_answered(competition, metric), *(competition.rows or ())[:1]}
        cells = read_table(file, only=needed, follow=True)
        ids = cells[competition.id]
        numeric = _all_numbers(ids)
        _check_ids(TableColumn(competition.id, ids, ids), numeric)
        scored = _scored(competition, cells, ids, numeric, features)
        values = _values(competition, metric, cells, ids, scored)
    except Invalid as error:
        line = 1 if error.row is None else error.row + 2  # the first line is the header
        raise DataError(str(file), line, error.column or "(header)", str(error)) from None
    return AnswerTable(competition, metric, ids, numeric, keys(ids, numeric), scored, values)


def keys(ids: NDArray[np.object_], numeric: bool) -> Any:
    """Ids as a pandas Index, in which equal ids are equal; as numbers, NaN is what is none."""
    return pandas().Index(parsed(ids) if numeric else ids)


def _complete(competition: Competition, metric: TaskMetric, names: list[str]) -> Competition:
    """The competition with the id column and the targets that the answers have.

    A prompt may name another id column than the files have. The files decide, and a submission may use
    either name.
    """
    if competition.id_stated and competition.id not in names:
        raise Invalid(
            f"there is no such column; {did_you_mean(competition.id, names)}", column=competition.id
        )
    id_column = competition.id if competition.id in names else names[0]
    filtered = competition.rows[0] if competition.rows else ""
    special = {id_column, competition.answer, filtered}
    targets = competition.targets or tuple(name for name in names if name not in special)
    also = {**competition.also, competition.id: id_column} if competition.id else competition.also
    competition = replace(competition, id=id_column, targets=targets, also=also)
    for name in _answered(competition, metric):
        if name not in names or name == id_column:
            others = [other for other in names if other != id_column]
            raise Invalid(f"there is no such column; {did_you_mean(name, others)}", column=name)
    if not targets:
        raise Invalid(f"there is no column but '{id_column}'")
    return competition


def _answered(competition: Competition, metric: TaskMetric) -> tuple[str, ...]:
    """The columns of the answers that are compared."""
    return (competition.answer,) if metric.joint and competition.answer else competition.targets


def _all_numbers(ids: NDArray[np.object_]) -> bool:
    """Whether ids are numbers, each a float of its own."""
    values = parsed(ids)
    exact = bool(np.all(np.isfinite(values) & (np.abs(values) < EXACT)))
    return exact and len(np.unique(values)) == len(values)


def _check_ids(column: TableColumn, numeric: bool) -> None:
    if not len(column.cells):
        raise Invalid("there are no rows", column=column.name)
    column.refuse(column.cells == "", "is a missing id", "every row needs one")
    column.refuse(
        keys(column.cells, numeric).duplicated(), "is there twice", "every row needs an id of its own"
    )


def _scored(
    competition: Competition, cells: Cells, ids: NDArray[np.object_], numeric: bool, features: Path | None
) -> NDArray[np.bool_]:
    """Which rows count, by the row filter's column of the answers or of the test set."""
    if competition.rows is None:
        return np.ones(len(ids), dtype=bool)
    name, value = competition.rows
    if name in cells:
        values = cells[name]
    else:
        values = _from_features(competition.id, name, keys(ids, numeric), numeric, features)
    scored = TableColumn(name, values, ids).each(lambda cell: label_of(cell) == label_of(value))
    if not scored.any():
        raise Invalid(f"no row has the value {value}, and only these are scored", column=name)
    return scored


def _from_features(id_column: str, name: str, rows: Any, numeric: bool, features: Path | None) -> Any:
    """A column of the test set, in the order of the answers' rows."""
    why = "only some rows are scored, by this column, and the answers lack it"
    if features is None:
        raise Invalid(f"{why}; name the test set too", column=name)
    try:
        table = read_table(features, only={id_column, name}, follow=True)
    except Invalid as error:
        raise Invalid(f"{why}; of the test set, {features}: {error}", column=name) from None
    lacking = {id_column, name} - table.keys()
    if lacking:
        raise Invalid(f"{why}; the test set, {features}, has no column '{min(lacking)}'", column=name)
    index = keys(table[id_column], numeric)
    if index.duplicated().any():
        raise Invalid(f"{why}; the test set, {features}, has an id twice", column=name)
    at = index.get_indexer(rows)
    if (at < 0).any():
        raise Invalid(f"{why}; the test set, {features}, lacks {(at < 0).sum():,} of the ids", column=name)
    return table[name][at]


def _values(
    competition: Competition,
    metric: TaskMetric,
    cells: Cells,
    ids: NDArray[np.object_],
    scored: NDArray[np.bool_],
) -> tuple[Any, ...]:
    columns = [TableColumn(name, cells[name][scored], ids[scored]) for name in _answered(competition, metric)]
    try:
        if not metric.joint:
            return tuple(metric.form.answers(column, competition) for column in columns)
        if competition.answer:
            return (label_numbers(columns[0], competition),)
        return (one_label_a_row(columns, competition),)
    except Invalid as error:
        row = None if error.row is None else int(np.flatnonzero(scored)[error.row])
        raise Invalid(str(error), column=error.column, row=row) from None
