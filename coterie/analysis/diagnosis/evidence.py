"""What a run left, as a diagnosis reads it, and the shape of a rule that looks for a sickness.

A trace is read through windows of steps. A level is the median of a window, so that single steps decide
nothing; a rise is a difference of means in units of its standard error, with the noise estimated from
differences of neighbouring steps, which a trend hardly touches (von Neumann 1941).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.analysis.credit.free_riders import CreditSickness
from coterie.analysis.diagnosis.role_table import RoleInStep
from coterie.api.rows import number_of
from coterie.api.signals import LEARNED

Floats = npt.NDArray[np.float64]
Row = Mapping[str, Any]

LEAST_STEPS = 8
"""Fewer values than so many show no trend, and no level."""
NARROWEST, WIDEST = 3, 20
"""Steps of a window, a fifth of the run between these bounds."""
LEAST_OF_RISE = 5
"""Fewer values than so many have no rise."""


@dataclass(frozen=True, slots=True)
class Spell:
    """The unbroken series of windows, up to the end of a run, in which something holds."""

    since: int
    """The middle step of the first of them."""
    value: float
    """The median of the last one."""


@dataclass(frozen=True)
class MetricTrace:
    """A metric over the steps in which it is a number."""

    name: str
    steps: npt.NDArray[np.int64]
    """Shape (n,), ascending."""
    values: Floats
    """Shape (n,)."""

    @classmethod
    def of(cls, rows: Sequence[Row], name: str) -> MetricTrace:
        """The metric of that name; a row without it, or in which it is no number, is left out."""
        pairs = [(row["step"], value) for row in rows if not math.isnan(value := number_of(row.get(name)))]
        steps = np.array([step for step, _ in pairs], dtype=np.int64)
        return cls(name, steps, np.array([value for _, value in pairs], dtype=np.float64))

    @property
    def known(self) -> bool:
        """Whether there are enough values to speak of a level or a trend."""
        return len(self.values) >= LEAST_STEPS

    @property
    def width(self) -> int:
        return min(max(len(self.values) // 5, NARROWEST), WIDEST)

    @cached_property
    def medians(self) -> Floats:
        """The median of each window of `width` steps, in order; empty where there are fewer values."""
        if len(self.values) < self.width:
            return np.zeros(0)
        windows = np.lib.stride_tricks.sliding_window_view(self.values, self.width)
        return np.asarray(np.median(windows, axis=1), dtype=np.float64)

    @property
    def start(self) -> float:
        """The median of the first window; NaN: there is none."""
        return float(self.medians[0]) if len(self.medians) else math.nan

    @property
    def first(self) -> float:
        """The mean of the first two values: what was before a change in the first steps. NaN: no value."""
        return float(self.values[:2].mean()) if len(self.values) else math.nan

    @property
    def end(self) -> float:
        """The median of the last window; NaN: there is none."""
        return float(self.medians[-1]) if len(self.medians) else math.nan

    def spell(self, holds: Callable[[Floats], npt.NDArray[np.bool_]]) -> Spell | None:
        """Since when a condition on the windows' medians holds, if it does at the end of the trace.

        Args:
            holds: of the medians, whether each meets the condition.
        """
        if not self.known or not (mask := holds(self.medians))[-1]:
            return None
        before = np.flatnonzero(~mask)
        first = int(before[-1]) + 1 if len(before) else 0
        # The first window of all says that it held soon; its first value that meets it says when.
        at = first + self.width // 2 if first else int(np.argmax(holds(self.values[: self.width])))
        return Spell(int(self.steps[at]), self.end)

    @cached_property
    def rise(self) -> float:
        """The last third's mean less the first third's, in standard errors; 0 of fewer than 5 values.

        Without any noise, infinite for a difference, and 0 for none.
        """
        if len(self.values) < LEAST_OF_RISE:
            return 0.0
        third = max(len(self.values) // 3, 2)
        difference = float(self.values[-third:].mean() - self.values[:third].mean())
        noise = float(np.sqrt(np.mean(np.diff(self.values) ** 2) / 2))
        if noise <= 1e-12 * max(1.0, float(np.abs(self.values).max())):
            return 0.0 if abs(difference) <= 1e-9 else math.copysign(math.inf, difference)
        return difference / (noise * math.sqrt(2 / third))

    @property
    def agreement(self) -> float:
        """Kendall's rank correlation of step and value (tau-a), from -1 to 1, of at most 200 steps."""
        values = self.values
        if len(values) > 200:
            values = values[np.linspace(0, len(values) - 1, 200).astype(int)]
        n = len(values)
        if n < 2:
            return 0.0
        signs = np.sign(values[None, :] - values[:, None])
        return float(np.triu(signs, 1).sum() / (n * (n - 1) / 2))

    def after(self, step: int) -> MetricTrace:
        """The part of the trace from a step on."""
        return MetricTrace(self.name, self.steps[self.steps >= step], self.values[self.steps >= step])

    def rise_since(self, step: int) -> float | None:
        """The rise since the steps before a change began; None: too few values."""
        at = max(int(np.searchsorted(self.steps, step)) - self.width, 0)
        part = self.after(int(self.steps[at])) if at < len(self.steps) else self.after(step)
        return part.rise if len(part.values) >= LEAST_OF_RISE else None

    def map(self, name: str, function: Callable[[Floats], Floats]) -> MetricTrace:
        """The trace of another quantity, value by value."""
        return MetricTrace(name, self.steps, function(self.values))


@dataclass(frozen=True)
class RunEvidence:
    """All that a rule may look at."""

    rows: Sequence[Row]
    """Of `metrics.jsonl`, by step, ascending."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The run's configuration, with every default where the folder has them."""
    roles_by_step: Mapping[int, Sequence[RoleInStep]] = field(default_factory=dict)
    """What the roles did, of the recorded steps that were read."""
    versions: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """By policy and recorded step, the newest version of the weights that drew an action."""
    credit: Sequence[CreditSickness] = ()
    """What the recorded steps show of free-riders and of dead components."""

    def trace(self, name: str) -> MetricTrace:
        """A metric over the run."""
        if name not in self._traces:
            self._traces[name] = MetricTrace.of(self.rows, name)
        return self._traces[name]

    @cached_property
    def _traces(self) -> dict[str, MetricTrace]:
        return {}

    @cached_property
    def names(self) -> set[str]:
        """Every metric that a row has."""
        return {name for row in self.rows for name in row}

    def parts(self, head: str) -> list[str]:
        """`solver` of `reward/solver`: the roles or policies with a metric of that head."""
        return sorted({name.split("/")[1] for name in self.names if name.startswith(f"{head}/")})

    @property
    def roles(self) -> list[str]:
        return self.parts("reward")

    @property
    def policies(self) -> list[str]:
        """Those with a metric, and those that play a role and are trained: a step may leave them out."""
        names = {name for role in self.roles if self.trained(role) and (name := self.policy_of(role))}
        return sorted({*self.parts("policy"), *names})

    @property
    def components(self) -> list[str]:
        return [name for name in self.parts("missing") if name != "share"]

    def trained(self, role: str) -> bool:
        """Whether the policy that plays a role is trained; also where the settings don't say."""
        table = (self.settings.get("policies") or {}).get(self.policy_of(role)) or {}
        return bool(table.get("train") != "none")

    def policy_of(self, role: str) -> str:
        """The policy that plays a role; empty: none, or the settings don't say."""
        roles = (self.settings.get("team") or {}).get("roles") or {}
        return (roles.get(role) or {}).get("policy") or ""

    @property
    def max_staleness(self) -> int:
        """Steps that may be played ahead."""
        value = (self.settings.get("schedule") or {}).get("max_staleness")
        return value if isinstance(value, int) else 0

    @cached_property
    def success(self) -> list[MetricTrace]:
        """The traces of success that are long enough: of evaluations, and of training."""
        traces = map(self.trace, ("eval/success", "success", "success_committed"))
        return [trace for trace in traces if trace.known]

    @property
    def has_learned(self) -> bool:
        """Whether the team succeeds nearly always at the end."""
        return any(trace.end >= LEARNED for trace in self.success)

    @property
    def closed_gap(self) -> float:
        """The largest share of the way from the first success to 1 that is gone; 0: none, or unknown."""
        gaps = [(t.end - t.start) / (1.0 - t.start) for t in self.success if t.start < 1.0]
        return max(gaps, default=0.0)

    @cached_property
    def success_rise(self) -> float | None:
        """The largest rise of a trace of success, in standard errors; None: there is none."""
        return max((trace.rise for trace in self.success), default=None)

    @cached_property
    def reward_rise(self) -> float:
        """The largest rise of a role's mean reward, in standard errors."""
        return max((self.trace(f"reward/{role}").rise for role in self.roles), default=0.0)

    @property
    def improves(self) -> float:
        """The rise of success; where none is known, that of the reward."""
        return self.reward_rise if self.success_rise is None else self.success_rise

    @property
    def levels_change(self) -> bool:
        """Whether a curriculum moves: success at another level is no measure of learning."""
        return self.trace("curriculum/level").rise > 1.0


# ------------------------------------------------------------------------------------ what rules say

Grade = Literal["warning", "fault"]
"""`fault`: the run learns nothing, or something else than it should; `warning`: look at it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Where a rule holds."""

    metric: str
    """The name of the metric that decides, or what is compared, in words."""
    value: float
    threshold: float
    since: int
    """The step in which it began."""
    detail: str = ""
    """What else a reader should know, in a clause."""


def seen(trace: MetricTrace, bound: float, *, below: bool = False) -> Seen | None:
    """Where a metric has reached a bound up to the end of the run; or, with `below`, lies below it."""
    spell = trace.spell(lambda medians: medians < bound if below else medians >= bound)
    return None if spell is None else Seen(trace.name, spell.value, bound, spell.since)


def reaches(metric: str, bound: float) -> Callable[[RunEvidence, str], Seen | None]:
    """A rule's `find`: a metric has reached a bound; its name has `{}` for the subject."""
    return lambda evidence, subject: seen(evidence.trace(metric.format(subject)), bound)


@dataclass(frozen=True, slots=True)
class SicknessRule:
    """A known sickness of runs, and how it is seen."""

    kind: str
    subjects: Literal["role", "policy", "component", "run", "credit"]
    """Whose sickness it is; `credit`: a role or a component that `coterie credit` finds."""
    grade: Grade
    metrics: tuple[str, ...]
    """The patterns of docs/metrics.md that it reads; others are files of the run folder."""
    sees: str
    """What one sees, with the threshold."""
    means: str
    helps: str
    """What helps, as settings where there are any."""
    find: Callable[[RunEvidence, str], Seen | None]
    """Of the evidence and a subject's name; `""` where the subject is the run."""

    def of(self, evidence: RunEvidence) -> list[Sickness]:
        """The subjects of which the rule holds."""
        every = {
            "role": evidence.roles,
            "policy": evidence.policies,
            "component": evidence.components,
            "run": [""],
            "credit": [each.subject for each in evidence.credit if each.kind == self.kind],
        }[self.subjects]
        return [
            Sickness(
                self.kind, subject, self.grade, seen.metric, seen.value, seen.threshold, seen.since,
                f"{self.means}{f' ({seen.detail})' if seen.detail else ''}", self.helps,
            )
            for subject in every
            if (seen := self.find(evidence, subject)) is not None
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sickness:
    """A known sickness of a run."""

    kind: str
    """Name of the rule."""
    subject: str
    """The role, the policy or the component; empty: the run."""
    grade: Grade
    metric: str
    """What decides: the name of a metric, or what is compared, in words."""
    value: float
    """At the end of the run."""
    threshold: float
    """From which on the value is a sickness."""
    since: int
    """The step in which it began."""
    says: str
    helps: str

    def as_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)

    @property
    def line(self) -> str:
        """`entropy_collapse (shared) since step 40: policy/shared/entropy 0.004, threshold 0.03`."""
        whose = f" ({self.subject})" if self.subject else ""
        return (
            f"{self.kind}{whose} since step {self.since}: {self.metric} {self.value:.4g}, "
            f"threshold {self.threshold:.4g}"
        )
