"""What a diagnosis of a run says: a value a sickness, and what a rule that looks for one is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from coterie.analysis.diagnosis.evidence import MetricTrace, RunEvidence

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
