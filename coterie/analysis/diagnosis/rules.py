"""All known sicknesses of runs, the gravest first. docs/doctor.md has them as a table."""

from __future__ import annotations

from coterie.analysis.diagnosis import rules_of_policies, rules_of_roles, rules_of_runs
from coterie.analysis.diagnosis.evidence import RunEvidence
from coterie.analysis.diagnosis.sicknesses import Sickness, SicknessRule

_EVERY = (*rules_of_runs.RULES, *rules_of_policies.RULES, *rules_of_roles.RULES)
RULES: tuple[SicknessRule, ...] = tuple(sorted(_EVERY, key=lambda rule: rule.grade == "warning"))

EXPLAINED: dict[str, frozenset[str]] = {
    "dead_component": frozenset({"no_variance", "reward_unchanged", "all_missing"}),
    "zero_gradient": frozenset({"no_variance", "all_missing"}),
    "no_variance": frozenset({"all_missing"}),
    "reward_unchanged": frozenset({"all_missing"}),
    "mismatch": frozenset({"stale_weights"}),
    "sharpening": frozenset({"stale_weights"}),
    "success_falls": frozenset({"reward_without_success"}),
    "learns_nothing": frozenset(
        {"success_falls", "reward_without_success", "stale_weights", "entropy_collapse"}
    ),
}
"""A kind -> kinds of which it is a consequence: where they are there, it is left out."""


def sicknesses(evidence: RunEvidence) -> list[Sickness]:
    """The known sicknesses that the evidence shows, in the order of the rules and their subjects."""
    every = [sickness for rule in RULES for sickness in rule.of(evidence)]
    return [each for each in every if not any(_explains(other, each) for other in every)]


def _explains(cause: Sickness, of: Sickness) -> bool:
    same = not cause.subject or of.subject in ("", cause.subject)
    return same and cause.kind in EXPLAINED.get(of.kind, frozenset())
