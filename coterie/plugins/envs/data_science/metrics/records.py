"""The competition of a task record: what its metadata says, over the table of DSBench's tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, ValidationError

from coterie.core.errors import DataError, did_you_mean
from coterie.plugins.envs.data_science.metrics.competition import Competition
from coterie.plugins.envs.data_science.metrics.dsbench import DSBENCH
from coterie.plugins.envs.data_science.metrics.metric import ALIASES, METRICS, metric_named


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, (bool, int, float)) else value


_Text = Annotated[str, BeforeValidator(_text)]
_Names = Annotated[list[Annotated[_Text, Field(min_length=1)]], BeforeValidator(_listed), Field(min_length=1)]
_NAMES = {"id_column": "id", "answer_column": "answer"}
"""Keys of a record, and the field of Competition where it has another name."""


class _Metadata(BaseModel):
    """The keys of a record's `metadata` that are about its metric; it may have others."""

    model_config = ConfigDict(extra="ignore", strict=True)

    metric: str | None = None
    id_column: str | None = None
    targets: _Names | None = None
    labels: _Names | None = None
    positive: _Text | None = None
    rows: Annotated[dict[str, _Text], Field(min_length=1, max_length=1)] | None = None
    answer_column: str | None = None
    baseline: FiniteFloat | None = None
    reference: FiniteFloat | None = None


def competition_of(metadata: Mapping[str, Any], *, file: str, line: int) -> Competition:
    """How a task is scored.

    Its keys are `metric`, `id_column`, `targets`, `labels`, `positive`, `rows` (`{column: value}`),
    `answer_column`, `baseline` and `reference`. What it doesn't say is that of its `task_id` in `DSBENCH`.

    Args:
        metadata: of the task record.
        file: where the record is, for messages.
        line: the same.

    Raises:
        DataError: a key has a wrong value, the metric is unknown or named nowhere, or the reference is no
            better than the baseline.
    """
    known = DSBENCH.get(str(metadata.get("task_id")))
    try:
        read = _Metadata.model_validate(dict(metadata)).model_dump(exclude_none=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, ("metadata", *first["loc"])))
        raise DataError(file, line, field, first["msg"], fix="see docs/data_science.md") from None
    given: dict[str, Any] = {_NAMES.get(key, key): value for key, value in read.items()}
    given["id_stated"] = "id" in given
    given |= {key: tuple(value) for key, value in given.items() if isinstance(value, list)}
    for key in ("targets", "labels"):
        if len(set(given.get(key, ()))) < len(given.get(key, ())):
            raise DataError(file, line, f"metadata.{key}", "names one twice", fix="name each once")
    if "rows" in given:
        [given["rows"]] = given["rows"].items()
    if known is None and "metric" not in given:
        raise DataError(
            file,
            line,
            "metadata.metric",
            f"the task '{metadata.get('task_id')}' names no metric, and DSBench has no such task",
            fix="name a metric, such as rmse or auc",
        )
    competition = replace(known, **given) if known is not None else Competition(**given)
    metric = metric_named(competition.metric)
    if metric is None:
        fix = did_you_mean(competition.metric.lower(), {*METRICS, *ALIASES, "map@3"} - {"map@k"})
        raise DataError(file, line, "metadata.metric", f"there is no metric '{competition.metric}'", fix=fix)
    _check_scale(competition, metric.direction == "higher", file, line)
    return replace(competition, metric=metric.name)


def _check_scale(competition: Competition, higher: bool, file: str, line: int) -> None:
    baseline, reference = competition.baseline, competition.reference
    if baseline is None or reference is None:
        return
    if baseline == reference or (reference > baseline) != higher:
        better = "higher" if higher else "lower"
        raise DataError(
            file,
            line,
            "metadata.reference",
            f"the reference {reference:g} is no better than the baseline {baseline:g}: {better} values of "
            f"{competition.metric} are better",
            fix="exchange them, or leave both out",
        )
