"""CCPO of the paper's first version: marginal contributions on the scale of those of earlier steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, pvariance
from typing import Any

from pydantic import Field

from coterie import RowConfig, Rows, ScoredRow
from coterie_ccpo.estimator import Alone, Marginal, task_of

ENOUGH = 10
"""Comparisons that have to be seen before anything is normalised."""
EPS = 1e-6


class CCPOHistory(Marginal):
    """History-aware rewards: a removed role's is its contribution, squashed; another role's is gated.

    With R the return of a chain of the team, S that of the chain beside it without role i, and z(x) =
    (x - m) / (s + 1e-6) by the running mean m and deviation s of the earlier steps:

        role i       tanh(sharpness * z(R - S))
        other roles  g z(R) + (1 - g) z(S), with g = sigmoid(gate * m / (s + 1e-6)) of R - S

    Means and variances decay by `decay` a step. Until ten comparisons were seen, the rewards are R - S and R.
    With several removed roles, another role gets the mean over them. The advantage is the reward less the
    mean of its task.
    """

    class Config(RowConfig):
        sharpness: float = Field(1.0, gt=0)
        gate: float = Field(1.0, ge=0)
        decay: float = Field(0.99, ge=0, lt=1)

    def rewards(self, rows: Rows, alone: Alone) -> Sequence[float | None]:
        """Each row's reward, by the moments of the steps before."""
        removed, state = sorted({role for _, role in alone}), rows.state or {}
        rewards: list[float | None] = []
        for row in rows:
            compared = [row.role] if row.role in removed else removed
            pairs = [(role, beside(row, role, alone, len(removed))) for role in compared]
            known = [self._reward(row, role, s, state.get(role)) for role, s in pairs if s is not None]
            rewards.append(fmean(known) if known else row.value if not removed else None)
        return rewards

    def _reward(self, row: ScoredRow, role: str, without: float, seen: Mapping[str, Any] | None) -> float:
        gain, is_removed = row.value - without, row.role == role
        if seen is None or seen["count"] < ENOUGH:
            return gain if is_removed else row.value
        if is_removed:
            return math.tanh(self.config.sharpness * z(gain, seen["gain"]))
        share = 1 / (1 + math.exp(-self.config.gate * seen["gain"][0] / deviation(seen["gain"])))
        return share * z(row.value, seen["team"]) + (1 - share) * z(without, seen["alone"])

    def next_state(self, rows: Rows) -> Any:
        """By removed role: how many comparisons were seen, and [mean, variance] of R - S, R and S."""
        alone, state = self.alone(rows.batch), dict(rows.state or {})
        removed = sorted({role for _, role in alone})
        for role in removed:
            pairs = [(row.value, beside(row, role, alone, len(removed))) for row in rows if row.role == role]
            known = [(value, without) for value, without in pairs if without is not None]
            if known:
                gains = [value - without for value, without in known]
                team, without = zip(*known, strict=True)
                state[role] = self._updated(state.get(role), len(known), gain=gains, team=team, alone=without)
        return state

    def _updated(self, seen: Mapping[str, Any] | None, count: int, **series: Sequence[float]) -> Any:
        moments = {name: [fmean(values), pvariance(values)] for name, values in series.items()}
        if seen is not None:
            keep = self.config.decay
            moments = {
                name: [keep * old + (1 - keep) * new for old, new in zip(seen[name], present, strict=True)]
                for name, present in moments.items()
            }
        return {"count": count + (seen["count"] if seen else 0), **moments}


def beside(row: ScoredRow, role: str, alone: Alone, removed: int) -> float | None:
    """What the chain without `role` beside a row's chain paid, else the mean of the task's; None: unknown."""
    without, chain = alone.get((task_of(row), role), {}), row.branches[0].chain
    pair = [value for other, value in without.items() if chain < other <= chain + removed]
    return pair[0] if pair else fmean(without.values()) if without else None


def deviation(moments: Sequence[float]) -> float:
    """The deviation of [mean, variance]; 1 where nothing varied."""
    return math.sqrt(moments[1]) + EPS if moments[1] > EPS else 1.0 + EPS


def z(value: float, moments: Sequence[float]) -> float:
    """A value on the scale of [mean, variance]."""
    return (value - moments[0]) / deviation(moments)
