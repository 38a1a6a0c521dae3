"""What each role did in the recorded steps, and where it fails, as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from coterie.analysis.diagnosis.role_failures import role_failures
from coterie.analysis.diagnosis.role_table import RoleInStep
from coterie.api.episodes import RecordedTree
from coterie.viewing.text import cut

REASONS = 5
"""Most frequent reasons of faults that are shown of a role."""
LONGEST = 300
"""Most characters of a reason; an episode has the whole."""

Reasons = Mapping[str, Sequence[tuple[str, int]]]
"""Role -> reasons and how many actions each had."""


def roles_json(
    tables: Mapping[int, tuple[Sequence[RoleInStep], Reasons]], rows: Mapping[int, Mapping[str, Any]]
) -> dict[int, dict[str, Any]]:
    """By step: `{"roles": [one entry a role], "findings": [...]}`.

    Args:
        tables: by recorded step: what the roles did, over all of its trees, and the reasons of their faults.
        rows: the rows of `metrics.jsonl` by step.
    """
    steps: dict[int, dict[str, Any]] = {}
    for step, (table, reasons) in sorted(tables.items()):
        row = rows.get(step, {})
        steps[step] = {
            "roles": [
                {
                    **asdict(of),
                    "zero_variance": row.get(f"groups/{of.role}/zero_variance"),
                    "reasons": reasons.get(of.role, []),
                }
                for of in table
            ],
            "findings": [],
        }
    for finding in role_failures([table for _, (table, _) in sorted(tables.items())]):
        steps[finding.step]["findings"].append(asdict(finding))
    return steps


def fault_reasons(trees: Sequence[RecordedTree]) -> dict[str, list[tuple[str, int]]]:
    """By role, the most frequent reasons of the policy's faults, and how many actions had each.

    A reason has at most `LONGEST` characters; those that begin alike up to there count as one.
    """
    counts: dict[str, Counter[str]] = {}
    for tree in trees:
        for node in tree.nodes.values():
            for role, decision in node.decisions.items():
                for branch in decision.branches:
                    if branch["fault"] is not None and branch["fault"]["kind"] == "policy":
                        reason = cut(branch["fault"]["reason"], LONGEST)
                        counts.setdefault(role, Counter())[reason] += 1
    return {role: of.most_common(REASONS) for role, of in counts.items()}
