"""Records of task packs: what the metric says of a task, beside what its record says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.core.types.splits import Record
from coterie.plugins.envs.data_science.metrics.metric import metric_named
from coterie.plugins.envs.data_science.metrics.records import competition_of

TASK_TYPE = "data_modeling"
"""`metadata.task_type` of the records that this package scores."""


def measured(record: Record, *, file: str, line: int) -> dict[str, Any]:
    """A task record whose `metadata` has `metric`, by its name, and `kind`: what is predicted, by the metric.

    `schedule.stratify` takes both. `data_type`, which stays, is wrong for 6 of the 72 records of MAPPA
    (arXiv 2601.23228).

    Args:
        file: where the record is, for messages.
        line: the same.

    Raises:
        DataError: nothing says how the task is scored, or what says it is wrong.
    """
    metadata: Mapping[str, Any] = record["metadata"]
    metric = metric_named(competition_of(metadata, file=file, line=line).metric)
    assert metric is not None  # competition_of refuses an unknown name
    return {**record, "metadata": {**metadata, "metric": metric.name, "kind": metric.kind}}
