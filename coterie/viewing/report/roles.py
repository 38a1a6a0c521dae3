"""What stands out in what each role did in a recorded step, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from coterie.api.episodes import RecordedTree
from coterie.viewing.role_table import roles_in_step

REASONS = 5
"""Most frequent reasons of faults that are shown of a role."""
LEAST_ACTIONS = 10
"""Fewest actions of a role for which a sign is told."""
SIGNS = {"unparsed": 0.2, "empty": 0.1, "repeats": 0.5, "cut": 0.9, "length_reward": 0.6, "equal": 0.9, "missing": 0.05}
"""From which share on (of `length_reward`: rank correlation) a sign is told."""
SHORT = 16
"""Answers that are cut off before as many tokens are short by intention."""


def roles_of_step(trees: Sequence[RecordedTree], row: Mapping[str, Any]) -> dict[str, Any]:
    """`{"roles": [one entry a role], "signs": [{"role", "sign", "text"}]}` of the trees of one step.

    Args:
        row: the step's row of `metrics.jsonl`; {}: it is lost.
    """
    entries = []
    for of_role in roles_in_step(trees):
        entry = asdict(of_role)
        entry["equal"] = row.get(f"groups/{of_role.role}/zero_variance")
        entry["reasons"] = _reasons(trees, of_role.role)
        entries.append(entry)
    return {"roles": entries, "signs": list(_signs(entries))}


def _signs(entries: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    for entry in entries:
        if entry["actions"] < LEAST_ACTIONS:
            continue
        for sign, bound in SIGNS.items():
            value = entry[sign]
            short = sign == "cut" and (entry["tokens"] or 0) < SHORT
            if value is not None and value >= bound and not short:
                yield {"role": entry["role"], "sign": sign, "text": _sentence(sign, entry)}


def _sentence(sign: str, entry: Mapping[str, Any]) -> str:
    value = entry[sign]
    share = f"{value:.0%}"
    if sign == "unparsed":
        reason, count = entry["reasons"][0]
        return f"{share} of its answers could not be parsed; most often ({count} times): {reason}"
    if sign == "length_reward":
        return f"longer answers were paid more: the rank correlation of tokens and reward is {value:.2f}"
    return {
        "empty": f"{share} of its answers are empty",
        "repeats": f"{share} of its committed actions repeat the last text of another role",
        "cut": f"max_new_tokens cut off {share} of its answers",
        "equal": f"{share} of its groups have equal rewards, so nothing is learned from them",
        "missing": f"{share} of its actions have no reward, since a score is missing",
    }[sign]


def _reasons(trees: Sequence[RecordedTree], role: str) -> list[tuple[str, int]]:
    """The most frequent reasons of the policy's faults, and how many there are of each."""
    counts = Counter(
        branch["fault"]["reason"]
        for tree in trees
        for node in tree.nodes.values()
        if role in node.decisions
        for branch in node.decisions[role].branches
        if branch["fault"] is not None and branch["fault"]["kind"] == "policy"
    )
    return counts.most_common(REASONS)
