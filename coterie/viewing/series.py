"""Curves of metrics: of one run, and of the runs of one configuration with several seeds.

Values are exactly those of `metrics.jsonl`. A value that is missing there, or is no number of at most 1e150,
is a gap (NaN), and nothing is smoothed unless somebody asks.
"""

from __future__ import annotations

import difflib
import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.api.rows import interval_of, number_of, read_metrics, readable, tokens_so_far
from coterie.api.run_record import recorded_settings, tells_apart
from coterie.core.errors import UserError
from coterie.core.storage.run_folder import RunFolder
from coterie.secret_settings import without_secrets
from coterie.stats import clustered_bootstrap
from coterie.viewing.metric_names import described
from coterie.viewing.text import cut

log = logging.getLogger("coterie")

Floats = npt.NDArray[np.float64]
By = Literal["step", "tokens"]


@dataclass(frozen=True, slots=True)
class RunRows:
    """The rows of a run, and what its configuration says."""

    path: Path
    settings: Mapping[str, Any]
    """By dotted path; those of `resolved.yaml`, or of `config.yaml` where there is none."""
    rows: Sequence[Mapping[str, Any]]

    @property
    def seed(self) -> int:
        return int(self.settings.get("seed", 0))

    @property
    def names(self) -> list[str]:
        """The metrics that a row has, in the order in which they come."""
        return list(dict.fromkeys(name for row in self.rows for name in row if name != "step"))


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one run. All arrays have one entry a row."""

    steps: npt.NDArray[np.int64]
    tokens: Floats
    """Generated in training up to the step."""
    values: Floats
    """NaN: the row has none."""
    named: npt.NDArray[np.bool_]
    """Whether the row has the metric at all: a gap where it is there without a value."""
    low: Floats
    high: Floats
    """Bounds of the value's own 95 % interval, such as those of `eval/success`; NaN where it has none."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of the runs of one configuration, at the steps whose rows have it."""

    metric: str
    x: Floats
    """Steps, or tokens (of several runs their mean at the step)."""
    values: Floats
    """Of several runs, the mean of those that have a value at the step; NaN: none has, which is a gap."""
    low: Floats
    high: Floats
    """Bounds of a 95 % interval; NaN where there is none."""
    counts: npt.NDArray[np.int64]
    """Runs that have a value at each point: those that its mean is of."""
    seeds: int
    """Runs that it is over."""
    interval: str
    """What the bounds are of: `over 3 seeds`, `over tasks`; empty: there are none."""
    left_out: int = 0
    """Last steps that not every run has reached."""

    @property
    def partial(self) -> npt.NDArray[np.bool_]:
        """The points whose mean is of fewer runs than the curve."""
        return (self.counts > 0) & (self.counts < self.seeds)


@dataclass(frozen=True, slots=True)
class Configuration:
    """Runs that differ in their seed alone."""

    runs: Sequence[RunRows]
    """One a seed."""
    differs: Mapping[str, Any] = field(default_factory=dict)
    """The settings in which it differs from the other configurations, by dotted path."""
    copies: Sequence[tuple[RunRows, RunRows]] = ()
    """Runs whose seed an earlier one has, each with that one: they count in no mean, as a seed is no two."""

    @property
    def label(self) -> str:
        """What tells it from the others, in a legend."""
        if not self.differs:
            first = self.runs[0]
            return str(first.settings.get("name") or first.path.name)
        values = {path: without_secrets(value, path.split(".")) for path, value in self.differs.items()}
        parts = [f"{_short(path, values)}={_text(value)}" for path, value in values.items()]
        more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""
        return ", ".join(parts[:3]) + more

    @property
    def notes(self) -> list[str]:
        """A sentence a copy."""
        return [
            f"{copy.path} is left out of curves: {first.path} has its configuration and its seed, {copy.seed}"
            for copy, first in self.copies
        ]


def read_run(path: Path) -> RunRows:
    """Read a run's rows and settings; a run without a row yet has none.

    Raises:
        RunFolderError: it is no run folder, or can't be read.
    """
    with readable(path):
        folder = RunFolder.open(path)
        rows = read_metrics(folder.metrics) if folder.metrics.exists() else []
        settings = recorded_settings(path)
    return RunRows(path, settings, rows)


def short_names(paths: Sequence[Path]) -> list[str]:
    """A name for each folder: its own, with as many folders above it as tell them apart."""
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names


def configurations(runs: Sequence[RunRows]) -> list[Configuration]:
    """The runs by configuration, in the order of the runs; those of one configuration by seed.

    Of runs with one configuration and one seed the first counts; the others are its copies, with a warning.
    """
    groups: dict[str, list[RunRows]] = {}
    for run in runs:
        kept = {path: value for path, value in run.settings.items() if tells_apart(path, run.settings)}
        groups.setdefault(json.dumps(kept, sort_keys=True, default=str), []).append(run)
    several, copies = [], []
    for of in groups.values():
        first: dict[int, RunRows] = {}
        copies.append([(run, first[run.seed]) for run in of if first.setdefault(run.seed, run) is not run])
        several.append([first[seed] for seed in sorted(first)])
    paths = dict.fromkeys(path for group in several for path in group[0].settings)
    differing = []
    for path in paths:
        values = (json.dumps(group[0].settings.get(path), sort_keys=True, default=str) for group in several)
        differing += [path] if len({*values}) > 1 else []
    together = [
        Configuration(
            group,
            {path: group[0].settings.get(path) for path in differing if tells_apart(path, group[0].settings)},
            of,
        )
        for group, of in zip(several, copies, strict=True)
    ]
    for note in (note for group in together for note in group.notes):
        log.warning("%s", note)
    return together


def _short(path: str, among: Iterable[str]) -> str:
    """The end of a dotted path that no other one has."""
    parts = path.split(".")
    for count in range(1, len(parts)):
        end = ".".join(parts[-count:])
        if sum(other == end or other.endswith(f".{end}") for other in among) == 1 and end != "type":
            return end
    return path


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else cut(str(value), 24)


def series(rows: Sequence[Mapping[str, Any]], metric: str) -> Series:
    """A metric in the rows of a run, with the interval that a row has of it (`<metric>_ci95`)."""
    steps = np.array([row["step"] for row in rows], dtype=np.int64)
    bounds = [interval_of(row.get(f"{metric}_ci95")) for row in rows]
    return Series(
        steps,
        np.array(tokens_so_far(rows), dtype=np.float64),
        np.array([number_of(row.get(metric)) for row in rows], dtype=np.float64),
        np.array([metric in row for row in rows], dtype=bool),
        np.array([low for low, _ in bounds], dtype=np.float64),
        np.array([high for _, high in bounds], dtype=np.float64),
    )


def smoothed(values: Floats, window: int) -> Floats:
    """The mean of `window` entries around each one, those that are gaps left out; a gap stays a gap.

    An even window reaches one entry further back than ahead. At the ends the window is shorter.
    """
    if window <= 1:
        return values
    before, after = window // 2, (window - 1) // 2
    means = np.full_like(values, math.nan)
    for at in np.flatnonzero(~np.isnan(values)):
        near = values[max(0, at - before) : at + after + 1]
        means[at] = near[~np.isnan(near)].mean()
    return means


def curve(runs: Sequence[RunRows], metric: str, by: By = "step", smooth: int = 1) -> Curve:
    """The curve of a metric over the runs of one configuration.

    Of one run: its values, with the intervals that its rows have. Of several: at each step the mean over the
    runs that have a value, with a 95 % interval over runs, since the seed is the unit: Student's t, from 6
    runs on the bootstrap of `coterie.stats.clustered_bootstrap`, within the metric's range. The curve ends
    where the shortest run does; otherwise its last part would be of other seeds than its first.

    Args:
        smooth: steps of the moving average of each run's values; 1: none.
    """
    every = [series(run.rows, metric) for run in runs]
    if len(every) == 1:
        return _single(every[0], metric, by, smooth)
    ends = [int(each.steps[-1]) if len(each.steps) else 0 for each in every]
    values = [smoothed(each.values, smooth) for each in every]
    by_step: list[dict[int, tuple[float, float]]] = []
    for each, of_run in zip(every, values, strict=True):
        cells = zip(of_run.tolist(), each.tokens.tolist(), strict=True)
        named = zip(each.steps.tolist(), cells, each.named.tolist(), strict=True)
        by_step.append({step: cell for step, cell, is_named in named if is_named and step <= min(ends)})
    steps = sorted({step for of in by_step for step in of})
    points = np.array([_point(step, by_step, metric, by) for step in steps], dtype=np.float64).reshape(-1, 5)
    interval = "" if np.isnan(points[:, 2]).all() else f"over {len(runs)} seeds"
    x, mean, low, high, counts = points.T
    return Curve(
        metric, x, mean, low, high, counts.astype(np.int64), len(runs), interval, max(ends) - min(ends)
    )


def _single(run: Series, metric: str, by: By, smooth: int) -> Curve:
    """The curve of one run. A moving average has no interval: its rows' are of single values."""
    x = run.tokens if by == "tokens" else run.steps.astype(np.float64)
    nothing = np.full_like(run.values, math.nan)
    low, high = (nothing, nothing) if smooth > 1 else (run.low, run.high)
    interval = "" if np.isnan(low).all() else "over tasks"
    x, values, low, high = (part[run.named] for part in (x, smoothed(run.values, smooth), low, high))
    return Curve(metric, x, values, low, high, (~np.isnan(values)).astype(np.int64), 1, interval)


def _point(
    step: int, by_step: Sequence[Mapping[int, tuple[float, float]]], metric: str, by: By
) -> tuple[float, float, float, float, int]:
    """(x, mean, low, high, runs with a value) of a step; NaN: none has one, or too few for an interval."""
    cells = [of[step] for of in by_step if step in of]
    x = float(step) if by == "step" else math.fsum(tokens for _, tokens in cells) / len(cells)
    there = [cell for cell in cells if not math.isnan(cell[0])]
    if not there:
        return x, math.nan, math.nan, math.nan, 0
    interval = clustered_bootstrap({str(n): [value] for n, (value, _) in enumerate(there)}, share=False)
    if math.isnan(interval.lo):
        return x, interval.mean, math.nan, math.nan, len(there)
    known = described(metric)
    low, high = (min(max(bound, known.low), known.high) for bound in (interval.lo, interval.hi))
    return x, interval.mean, low, high, len(there)


def expand(patterns: Sequence[str], names: Iterable[str]) -> list[str]:
    """The metrics that names and wildcards such as `reward/*` stand for, in the order of the patterns.

    Raises:
        UserError: no metric has such a name; the message has the nearest ones.
    """
    known = [name for name in names if not name.endswith("_ci95")]
    chosen: dict[str, None] = {}
    for pattern in patterns:
        matching = [pattern] if pattern in known else [name for name in known if fnmatchcase(name, pattern)]
        if not matching:
            raise unknown_metric(pattern, known)
        chosen.update(dict.fromkeys(matching))
    return list(chosen)


def unknown_metric(name: str, known: Sequence[str]) -> UserError:
    """The error about a metric that no row has, with the nearest names."""
    near = difflib.get_close_matches(name, known, 4, 0.5)
    near += [other for other in known if name.strip("*").rstrip("/") in other and other not in near][
        : 6 - len(near)
    ]
    listed = ", ".join(near) if near else ", ".join(known[:8])
    fix = f"did you mean {listed}?" if near else f"metrics are, for example, {listed}" if known else ""
    why = "no row of these runs has it" if known else "these runs have no row yet"
    return UserError(f"there is no metric '{name}'", why=why, fix=fix or "wait for the first step")
