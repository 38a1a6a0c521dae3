"""Statistics of a coach's scores: agreement, bias by role and task type, drift.

Roles do their work unequally well, so their mean scores differ under an honest coach too. Bias is what is
left when scores are compared at equal verified quality: a regression of the score on quality, dummies of the
roles and of the task types, and the step. Quality enters by bins of equal size and linearly inside them,
because scores are clipped at 0 and 10, so that their mean is no straight line of quality. Standard errors are
clustered by task (Liang & Zeger 1986).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BINS = 20
"""Bins of quality; a quality with as many values or fewer has one bin a value."""

LEAST_BIAS = 0.45
"""Points by which a role's or a task type's scores must differ from the others' at equal quality."""
LEAST_DRIFT = 0.45
"""Points in 50 steps."""
LEAST_T = 4.0
"""|estimate / standard error| of bias and drift.

They were set on seeds 100-119 of `tests/api/coach_simulation.py` (scores 10 x quality + N(0, 1.5), rounded
and clipped; 3 roles x 16 actions x 100 steps; role and quality correlated .3). There the honest
coach's bias was at most .11 points and its drift at most .06, with |t| at most 2.5; a coach that favours a
role by 1 point gave .78 to .94 (clipping takes the rest), one that drifts by 1 point in 50 steps .79 to .92.
The bounds of points stand half-way. Seeds 0-19, on which the rule is judged, had no part in it.
"""
DRIFT_STEPS = 50
AGREEMENT = 0.2
"""A rank correlation whose 95 % interval lies below this is warned about."""
NORMAL_95 = 1.959964
"""Standard errors on either side of an estimate that a 95 % interval has."""
LEAST_ACTIONS = 60
"""Fewest scored actions for which bias and drift are estimated."""


@dataclass(frozen=True, slots=True)
class ScoredActions:
    """Scored actions as columns, shape (actions,) each."""

    score: Floats
    """0 to 10."""
    quality: Floats
    """Verified quality, in any unit; NaN where there is none."""
    role: npt.NDArray[np.str_]
    kind: npt.NDArray[np.str_]
    """Task type: the task's stratum."""
    step: Ints
    task: npt.NDArray[np.str_]
    """Cluster of the standard errors."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """One effect, in points of the score."""

    value: float
    error: float
    """Standard error; NaN where the data doesn't determine it."""

    @property
    def t(self) -> float:
        return self.value / self.error if self.error > 0 else math.nan

    def beyond(self, least: float) -> bool:
        """Whether it is at least this large, and certain."""
        return abs(self.value) >= least and abs(self.t) >= LEAST_T

    @property
    def ci95(self) -> tuple[float, float]:
        """The 95 % interval, of a normal distribution; NaN where there is no standard error."""
        half = NORMAL_95 * self.error
        return self.value - half, self.value + half

    def as_dict(self) -> dict[str, Any]:
        return {"points": self.value, "ci95": list(self.ci95), "t": self.t}


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of one regression."""

    roles: dict[str, Estimate]
    """By role: its mean score at equal quality minus the other roles'; empty with one role."""
    kinds: dict[str, Estimate]
    """The same by task type."""
    drift: Estimate | None
    """Change of the score in 50 steps at equal quality; None where all scores are of one step."""
    biased_roles: tuple[str, ...]
    """Roles that are scored otherwise than the rest; the largest first."""
    biased_kinds: tuple[str, ...]

    @property
    def drifts(self) -> bool:
        return self.drift is not None and self.drift.beyond(LEAST_DRIFT)


def rank_correlation(a: Floats, b: Floats) -> float:
    """Spearman's correlation, with mean ranks of ties; NaN where a side has one value or there are fewer than
    three pairs."""
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return math.nan
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def uncorrelated(a: Floats, b: Floats, names: tuple[str, str]) -> str:
    """Why two sides have no rank correlation; empty where they have one.

    Args:
        names: of the sides, in the plural.
    """
    if len(a) < 3:
        return f"{len(a)} actions have both, and three are needed"
    for side, name in zip((a, b), names, strict=True):
        if np.ptp(side) == 0:
            return f"all {name} are {side[0]:g}"
    return ""


def ranks(values: Floats) -> Floats:
    """Ranks from 1; ties have their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], dtype=np.float64)


def correlation_interval(rho: float, n: int) -> tuple[float, float]:
    """A 95 % interval of a rank correlation: Fisher's z with the variance of Bonett & Wright (2000).

    Args:
        n: independent pairs; the number of tasks, where actions of a task resemble each other.
    """
    if math.isnan(rho) or n < 5:
        return math.nan, math.nan
    z = math.atanh(max(-0.999999, min(0.999999, rho)))
    half = NORMAL_95 * math.sqrt((1 + rho * rho / 2) / (n - 3))
    return math.tanh(z - half), math.tanh(z + half)


def effects(actions: ScoredActions) -> Effects | None:
    """The effects of role, task type and step on the score at equal quality.

    None where fewer than LEAST_ACTIONS scores have a quality.
    """
    known = np.isfinite(actions.quality) & np.isfinite(actions.score)
    if known.sum() < LEAST_ACTIONS:
        return None
    score, quality, step = actions.score[known], actions.quality[known], actions.step[known]
    role, role_names = _codes(actions.role[known])
    kind, kind_names = _codes(actions.kind[known])
    blocks = [_quality_columns(quality), _dummies(role, len(role_names)), _dummies(kind, len(kind_names))]
    stepped = np.ptp(step) > 0
    if stepped:
        blocks.append(((step - step.mean()) / DRIFT_STEPS)[:, None])
    fit = coefficients, covariance = _regression(np.hstack(blocks), score, actions.task[known])
    first = blocks[0].shape[1]
    roles = {name: first + at for at, name in enumerate(role_names[1:])}  # the first has no column
    kinds = {name: first + len(roles) + at for at, name in enumerate(kind_names[1:])}
    return Effects(
        roles=_against_others(*fit, roles, role_names),
        kinds=_against_others(*fit, kinds, kind_names),
        drift=Estimate(float(coefficients[-1]), _root(covariance[-1, -1])) if stepped else None,
        biased_roles=_biased(*fit, roles, role_names),
        biased_kinds=_biased(*fit, kinds, kind_names),
    )


def _codes(names: npt.NDArray[np.str_]) -> tuple[Ints, list[str]]:
    unique, codes = np.unique(names, return_inverse=True)
    return np.asarray(codes, dtype=np.int64), [str(name) for name in unique]


def _dummies(codes: Ints, count: int) -> Floats:
    """One column for each value but the first, shape (actions, count - 1)."""
    return np.asarray(codes[:, None] == np.arange(1, count)[None, :], dtype=np.float64)


def _quality_columns(quality: Floats) -> Floats:
    """One column a bin of quality (their sum: the intercept), and quality where a bin has several values."""
    values = np.unique(quality)
    if len(values) <= BINS:
        return np.asarray(quality[:, None] == values[None, :], dtype=np.float64)
    edges = np.unique(np.quantile(quality, np.arange(1, BINS) / BINS))
    bins = np.searchsorted(edges, quality, side="right")
    used = np.unique(bins)
    columns = np.asarray(bins[:, None] == used[None, :], dtype=np.float64)
    return np.hstack([columns, quality[:, None]])


def _regression(x: Floats, y: Floats, clusters: npt.NDArray[np.str_]) -> tuple[Floats, Floats]:
    """Least squares: coefficients, shape (k,), and their covariance clustered by task, shape (k, k)."""
    inverse = np.linalg.pinv(x.T @ x)
    coefficients = inverse @ x.T @ y
    residuals = y - x @ coefficients
    codes, names = _codes(clusters)
    sums = np.zeros((len(names), x.shape[1]))
    np.add.at(sums, codes, x * residuals[:, None])
    groups, n, k = len(names), len(y), x.shape[1]
    if groups < 2 or n <= k:
        return coefficients, np.full((k, k), math.nan)
    small = groups / (groups - 1) * (n - 1) / (n - k)
    return coefficients, small * inverse @ (sums.T @ sums) @ inverse


def _root(variance: float) -> float:
    return math.sqrt(variance) if variance > 0 else math.nan


def _against_others(
    coefficients: Floats, covariance: Floats, columns: Mapping[str, int], names: Sequence[str]
) -> dict[str, Estimate]:
    """By name: its effect minus the mean effect of the others; of a name without a column it is 0."""
    estimates: dict[str, Estimate] = {}
    for name in names if len(names) > 1 else ():
        weights = np.zeros(len(coefficients))
        for other in columns.keys() & {*names}:
            weights[columns[other]] = 1.0 if other == name else -1.0 / (len(names) - 1)
        error = _root(float(weights @ covariance @ weights))
        estimates[name] = Estimate(float(weights @ coefficients), error)
    return estimates


def _biased(
    coefficients: Floats, covariance: Floats, columns: Mapping[str, int], names: Sequence[str]
) -> tuple[str, ...]:
    """The names whose effect differs from the others', one by one: the largest leaves before the next is
    compared, so that a favoured role doesn't make the others look disfavoured."""
    flagged: list[str] = []
    left = list(names)
    while len(left) > 1:
        estimates = _against_others(coefficients, covariance, columns, left)
        # Of two that differ by the same, the one that is scored higher.
        largest = max(left, key=lambda name: (round(abs(estimates[name].value), 9), estimates[name].value))
        if not estimates[largest].beyond(LEAST_BIAS):
            break
        flagged.append(largest)
        left.remove(largest)
    return tuple(flagged)
