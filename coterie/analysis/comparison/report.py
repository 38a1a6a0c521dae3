"""Sides compared by task: differences with intervals, what so many tasks can show, tables by stratum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.analysis.comparison.power import (
    LEVEL,
    POWER,
    SignFlips,
    beyond,
    critical,
    detectable,
    holm,
    tasks_for,
)
from coterie.core.storage.atomic import write_atomic
from coterie.core.storage.jsonl import to_json
from coterie.stats import Difference, Floats, Interval, clustered_bootstrap, paired_difference

PerTask = Mapping[str, Sequence[float]]
FEWEST = 6
"""Fewest tasks of which the sign-flip test can show anything: its smallest p-value is 2 / 2**n."""


@dataclass(frozen=True, slots=True)
class SideValues:
    """A side's values of the metric, for the tasks that all sides have."""

    name: str
    labels: Sequence[str]
    """Of its seeds' evaluations."""
    seeds: Sequence[PerTask] = field(repr=False)
    """Of each seed: task id -> values of its samples."""

    def table(self, tasks: Sequence[str]) -> Floats:
        """The means over samples, shape (seeds, tasks)."""
        return np.array([[math.fsum(of[task]) / len(of[task]) for task in tasks] for of in self.seeds])


@dataclass(frozen=True, slots=True)
class SideSummary:
    """The mean of a side."""

    interval: Interval
    seeds: int
    labels: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        return {**self.interval.as_dict(), "seeds": self.seeds, "sources": list(self.labels)}


@dataclass(frozen=True, slots=True)
class PairedResult:
    """The difference of two sides on the same tasks: `second` minus `first`."""

    first: str
    second: str
    difference: Difference
    p_holm: float
    """Corrected for the other comparisons of the table."""
    detectable: float
    """The smallest true difference that so many tasks (and seeds) show with probability 0.8, at a level of
    5 %, by the test that decides; infinite: so few tasks that differ show none; NaN: there is no spread."""
    tasks_needed: int | None
    """Tasks with which a true difference as large as the observed one is shown with that probability; None:
    no number of tasks does it."""
    seed_share: float
    """Share of the difference's variance that comes from seeds; 0: each side is one run."""
    by_stratum: Mapping[str, PairedResult] = field(default_factory=dict)
    """Of each class of tasks, where there are several; corrected among all classes of the report."""

    @property
    def shown(self) -> bool:
        """Whether the corrected test finds a difference, at a level of 5 %."""
        return self.p_holm <= LEVEL

    @property
    def only_by_interval(self) -> bool:
        """Whether the interval leaves 0 out and the test, uncorrected, shows nothing."""
        return self.difference.p > LEVEL and (self.difference.lo > 0 or self.difference.hi < 0)

    @property
    def more_tasks(self) -> int | None:
        """Further tasks that are needed; 0: the difference is shown; None: no number of tasks does it."""
        if self.shown or self.tasks_needed is None:
            return 0 if self.shown else None
        return max(0, self.tasks_needed - self.difference.n)

    def as_dict(self) -> dict[str, Any]:
        known = self.detectable if math.isfinite(self.detectable) else None
        strata = {name: result.as_dict() for name, result in self.by_stratum.items()}
        return {
            "first": self.first,
            "second": self.second,
            **self.difference.as_dict(),
            "p_holm": None if math.isnan(self.p_holm) else self.p_holm,
            "shown": self.shown,
            "detectable": known,
            "tasks_needed": self.tasks_needed,
            "more_tasks": self.more_tasks,
            "seed_share": self.seed_share,
            **({"by_stratum": strata} if strata else {}),
        }


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """Runs or evaluations compared by task."""

    metric: str
    split: str
    tasks: int
    """Tasks that all sides have."""
    sides: Mapping[str, SideSummary]
    comparisons: Sequence[PairedResult]
    notes: Sequence[str] = ()
    """What a reader has to know: tasks that are left out, what an interval is of."""
    per_task: Mapping[str, Mapping[str, float]] = field(default_factory=dict, repr=False)
    """Side -> task id -> its mean over samples and seeds."""

    def as_dict(self) -> dict[str, Any]:
        """The JSON of `coterie compare --json`."""
        return {
            "metric": self.metric,
            "split": self.split,
            "tasks": self.tasks,
            "power": POWER,
            "level": LEVEL,
            "sides": {name: side.as_dict() for name, side in self.sides.items()},
            "comparisons": [each.as_dict() for each in self.comparisons],
            "notes": list(self.notes),
        }

    def write(self, path: Path) -> None:
        """Write the JSON with every task's means.

        Raises:
            WriteError: the file can't be written; nothing of it is there.
        """
        per_task = {name: dict(of) for name, of in self.per_task.items()}
        write_atomic(path, to_json({**self.as_dict(), "per_task": per_task}) + "\n")


def summary(side: SideValues, share: bool) -> SideSummary:
    """The mean of a side, with an interval over its tasks and, of several seeds, over seeds too.

    Args:
        share: whether values are shares, from 0 to 1.
    """
    if len(side.seeds) == 1:
        interval = clustered_bootstrap(side.seeds[0], share=share)
    else:
        table = side.table(sorted(side.seeds[0]))
        interval = crossed_mean(table).interval(*_range(share, 0.0))
        if math.isnan(interval.lo) and share:  # nothing spreads: as many coins as there are tasks
            interval = clustered_bootstrap({str(at): [mean] for at, mean in enumerate(table.mean(axis=0))})
    return SideSummary(interval, len(side.seeds), side.labels)


def compared(
    sides: Sequence[SideValues], strata: Mapping[str, str], share: bool, *, all_pairs: bool = False
) -> list[PairedResult]:
    """Every side against the first, or every pair, with Holm's correction.

    Args:
        strata: task id -> its class; empty: none is known.
        share: as of `summary`.
    """
    tasks = sorted(sides[0].seeds[0])
    names = sorted({strata.get(task, "") for task in tasks})
    classes = {name: [task for task in tasks if strata.get(task, "") == name] for name in names}
    firsts = range(len(sides) - 1) if all_pairs else range(1)
    pairs = [(sides[a], sides[b]) for a in firsts for b in range(a + 1, len(sides))]
    results = _corrected([_pair(a, b, tasks, share) for a, b in pairs])
    if len(classes) < 2:
        return results
    parts = [_pair(a, b, of, share) for a, b in pairs for of in classes.values()]
    corrected = iter(_corrected(parts))
    return [replace(each, by_stratum={name: next(corrected) for name in classes}) for each in results]


def _corrected(results: Sequence[PairedResult]) -> list[PairedResult]:
    adjusted = holm([each.difference.p for each in results])
    return [replace(each, p_holm=p) for each, p in zip(results, adjusted, strict=True)]


def _pair(first: SideValues, second: SideValues, tasks: Sequence[str], share: bool) -> PairedResult:
    spread = crossed_mean(second.table(tasks), first.table(tasks))
    error, freedom = spread.error()
    difference = _difference(first, second, tasks, spread, share)
    needed = tasks_for(difference.mean, spread.error) if error > 0 else None
    smallest = detectable(error, freedom)
    if len(first.seeds) == len(second.seeds) == 1 and error > 0:  # the sign-flip test decides
        flips = SignFlips((second.table(tasks) - first.table(tasks))[0])
        smallest = max(smallest, flips.detectable())
        needed = needed and flips.tasks_for(difference.mean, max(needed, FEWEST))
    return PairedResult(
        first=first.name,
        second=second.name,
        difference=difference,
        p_holm=math.nan,
        detectable=smallest,
        tasks_needed=needed,
        seed_share=spread.seed_variance / error**2 if error > 0 else 0.0,
    )


def _difference(
    first: SideValues, second: SideValues, tasks: Sequence[str], spread: CrossedMean, share: bool
) -> Difference:
    if len(first.seeds) == len(second.seeds) == 1:
        a, b = ({task: side.seeds[0][task] for task in tasks} for side in (second, first))
        return paired_difference(a, b)
    difference = spread.difference(*_range(share, -1.0))
    if math.isnan(difference.lo) and share:
        # Nothing spreads, so that nothing shows by how much: as many coins as there are tasks.
        a, b = (
            dict(zip(tasks, side.table(tasks).mean(axis=0)[:, None], strict=True)) for side in (second, first)
        )
        return paired_difference(a, b)
    return difference


def _range(share: bool, low: float) -> tuple[float, float]:
    return (low, 1.0) if share else (-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class SeedTerm:
    """What the seeds of a configuration add to a variance."""

    variance: float
    """At least 0."""
    mean_squares: tuple[tuple[float, float], ...] = ()
    """(term, degrees of freedom) of the seeds' means, and of the interaction."""


@dataclass(frozen=True, slots=True)
class CrossedMean:
    """A mean over tasks and seeds, and what it varies by."""

    mean: float
    tasks: int
    task_variance: float
    """Of the mean, from tasks: it falls as 1 / tasks. NaN: one task."""
    seeds: Sequence[SeedTerm]

    @property
    def seed_variance(self) -> float:
        """Of the mean, from seeds: it stays, however many tasks there are."""
        return sum(term.variance for term in self.seeds)

    def error(self, tasks: int | None = None) -> tuple[float, float]:
        """(standard error, degrees of freedom) with so many tasks; None: those that there are."""
        count = self.tasks if tasks is None else tasks
        of_tasks = self.task_variance * self.tasks / count
        variance = of_tasks + self.seed_variance
        if count < 2 or not variance > 0:
            return (math.nan, 0.0) if count < 2 or math.isnan(variance) else (0.0, float(count - 1))
        squares = [(of_tasks, count - 1.0)]
        squares += [square for term in self.seeds if term.variance > 0 for square in term.mean_squares]
        freedom = variance**2 / sum(value**2 / df for value, df in squares if df > 0)
        return math.sqrt(variance), max(1.0, freedom)

    def interval(self, low: float, high: float, level: float = 0.95) -> Interval:
        """Student's t, within the range of the values; NaN bounds where nothing spreads."""
        error, freedom = self.error()
        if not error > 0:  # no spread was seen, and it says nothing
            return Interval(self.mean, math.nan, math.nan, self.tasks, level)
        half = error * critical(freedom, 1 - level)
        return Interval(self.mean, max(low, self.mean - half), min(high, self.mean + half), self.tasks, level)

    def difference(self, low: float, high: float, level: float = 0.95) -> Difference:
        """The interval, with the p-value of the t test of no difference."""
        of = self.interval(low, high, level)
        error, freedom = self.error()
        p = beyond(abs(self.mean) / error, freedom) if error > 0 else math.nan
        return Difference(of.mean, of.lo, of.hi, of.n, level, p)


def crossed_mean(values: Floats, minus: Floats | None = None) -> CrossedMean:
    """The mean of one configuration, or the difference of two on the same tasks.

    Args:
        values: of a configuration, shape (seeds, tasks).
        minus: of the other, with the same tasks.
    """
    sides = [values] if minus is None else [values, minus]
    by_task = values.mean(axis=0) - (0.0 if minus is None else minus.mean(axis=0))
    tasks = len(by_task)
    variance = float(by_task.var(ddof=1)) / tasks if tasks > 1 else math.nan
    terms = [_seed_term(side, alone=minus is None) for side in sides]
    return CrossedMean(math.fsum(by_task) / tasks, tasks, variance, terms)


def _seed_term(values: Floats, alone: bool) -> SeedTerm:
    """What seeds add.

    Args:
        alone: whether the mean of one configuration is wanted. Its seeds' spread then stands whole, and no
            smaller than by chance: of two or three seeds, the difference of two mean squares is 0 too often,
            and an interval with it holds the truth in 87 to 92 % only.
    """
    seeds, tasks = values.shape
    if seeds < 2 or tasks < 2:
        return SeedTerm(0.0)
    means = values.mean(axis=1)
    rest = values - values.mean(axis=0) - means[:, None] + values.mean()
    freedom = (seeds - 1.0) * (tasks - 1.0)
    of_means = float(means.var(ddof=1)) / seeds
    interaction = float(np.square(rest).sum()) / freedom / (seeds * tasks)
    if alone:
        whole = max(of_means, interaction)
        return SeedTerm(whole, ((whole, seeds - 1.0),))
    return SeedTerm(max(0.0, of_means - interaction), ((of_means, seeds - 1.0), (interaction, freedom)))
