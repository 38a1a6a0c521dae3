"""Runs that differ in their seed alone, and the mean and interval of each metric over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from coterie.viewing.report.differences import settings
from coterie.viewing.report.reading import ReportedRun
from coterie.viewing.series import RunRows, configurations, curve


def groups(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
    """The runs by configuration: `{"label", "runs", "bands", "copies", "notes"}`.

    `runs` are their indices. `bands` has of each metric the mean and 95 % interval over seeds at each step:
    `{metric: {"steps", "mean", "low", "high", "counts"}}`; None: one run. `counts`: runs with a value at the
    step, which the mean is of. `left_out`: last steps that not all reached. `copies` are runs whose seed
    another one has, which count nowhere; `notes` say so.
    """
    rows = [RunRows(run.folder.path, settings(run), run.rows) for run in runs]
    places = {id(of): index for index, of in enumerate(rows)}
    together = []
    for configuration in configurations(rows):
        of = [places[id(run)] for run in configuration.runs]
        bands = _bands(configuration.runs) if len(of) > 1 else None
        together.append(
            {
                "label": configuration.label,
                "runs": of,
                "bands": bands,
                "copies": [places[id(copy)] for copy, _ in configuration.copies],
                "notes": configuration.notes,
            }
        )
    return together


def _bands(runs: Sequence[RunRows]) -> dict[str, dict[str, Any]]:
    names = dict.fromkeys(name for run in runs for name in run.names if not name.endswith("_ci95"))
    bands = {}
    for name in names:
        of = curve(runs, name)
        bands[name] = {
            "steps": [int(step) for step in of.x],
            "mean": [_known(value) for value in of.values],
            "low": [_known(value) for value in of.low],
            "high": [_known(value) for value in of.high],
            "counts": of.counts.tolist(),
            "left_out": of.left_out,
        }
    return bands


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
