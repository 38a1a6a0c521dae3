"""What each role did in a recorded step, and signs that it fails, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from coterie.api.coach_statistics import rank_correlation
from coterie.api.episodes import Row, tokens_of
from coterie.viewing.episode_fields import Value

REASONS = 5
"""Most frequent reasons of faults that are shown of a role."""
LEAST_ACTIONS = 10
"""Fewest actions of a role for which a sign is told."""
UNREADABLE, EMPTY, REPEATS, CUT_OFF, EQUAL, LOST, PAID_LENGTH = 0.2, 0.1, 0.5, 0.9, 0.9, 0.05, 0.6
"""From which share (rank correlation) on a sign is told."""
SHORT = 16
"""Answers that are cut off before as many tokens are short by intention."""


def role_table(
    branches: Sequence[Row], episodes: Sequence[Mapping[str, Value]], row: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """By role, what its row of metrics and its recorded branches say.

    Args:
        branches: rows of kind branch of a step, all that were sampled.
        episodes: the fields of its episodes.
        row: the step's row of `metrics.jsonl`; {}: it is lost.
    """
    table: dict[str, dict[str, Any]] = {}
    for role in dict.fromkeys(branch["role"] for branch in branches):
        of_role = [branch for branch in branches if branch["role"] == role]
        table[role] = {
            "actions": len(of_role),
            "reward": row.get(f"reward/{role}"),
            "advantage": row.get(f"advantage/{role}/abs"),
            "length": row.get(f"length/{role}"),
            "unreadable": row.get(f"faults/{role}/policy"),
            "empty": row.get(f"empty/{role}"),
            "cut_off": row.get(f"finish_length/{role}"),
            "equal": row.get(f"groups/{role}/zero_variance"),
            "missing": sum(branch["reward"] is None for branch in of_role) / len(of_role),
            "repeats": _repeats(episodes, role),
            "pays_length": _pays_length(of_role),
            "reasons": _reasons(of_role),
        }
    return table


def signs(table: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """What stands out in a step's table: the role, the sign, and a sentence."""
    for role, entry in table.items():
        if entry["actions"] < LEAST_ACTIONS:
            continue
        for sign, text in _signs(entry):
            yield {"role": role, "sign": sign, "text": text}


def _signs(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    def above(key: str, bound: float) -> bool:
        return entry[key] is not None and entry[key] >= bound

    if above("unreadable", UNREADABLE):
        reasons = entry["reasons"]
        why = f"; most often: {reasons[0][0]} ({reasons[0][1]} times)" if reasons else ""
        yield "faults", f"{_share(entry['unreadable'])} of its answers could not be parsed{why}"
    if above("empty", EMPTY):
        yield "empty", f"{_share(entry['empty'])} of its answers are empty"
    if above("repeats", REPEATS):
        yield "repeats", f"{_share(entry['repeats'])} of its actions repeat the text of the role before it"
    if above("cut_off", CUT_OFF) and above("length", SHORT):
        yield "cut", f"max_new_tokens cut off {_share(entry['cut_off'])} of its answers"
    if above("pays_length", PAID_LENGTH):
        yield (
            "tokens",
            f"longer answers were paid more: rank correlation {entry['pays_length']:.2f} between tokens and "
            "reward, among actions of one prompt where there are several",
        )
    if above("equal", EQUAL):
        yield "spread", f"{_share(entry['equal'])} of its groups have equal rewards, so they teach nothing"
    if above("missing", LOST):
        yield "missing", f"{_share(entry['missing'])} of its actions have no reward, since a score is missing"


def _repeats(episodes: Sequence[Mapping[str, Value]], role: str) -> float | None:
    """Share of the role's committed actions that repeat the role before it."""
    actions = sum(float(of.get(f"actions.{role}") or 0) for of in episodes)
    repeats = sum(float(of.get(f"repeats.{role}") or 0) for of in episodes)
    return repeats / actions if actions else None


def _pays_length(branches: Sequence[Row]) -> float | None:
    """Rank correlation of tokens and reward; of siblings, of what differs from their means.

    None: fewer than `LEAST_ACTIONS` rewards, or all of them or all lengths are equal.
    """
    prompts: dict[str, list[tuple[float, float]]] = {}
    for branch in branches:
        if branch["reward"] is not None:
            pair = float(tokens_of(branch)), float(branch["reward"])
            prompts.setdefault(branch["node"], []).append(pair)
    groups = [np.array(pairs) for pairs in prompts.values()]
    if not groups or sum(map(len, groups)) < LEAST_ACTIONS:
        return None
    if any(len(group) > 1 for group in groups):
        groups = [group - group.mean(axis=0) for group in groups if len(group) > 1]
    tokens, rewards = np.concatenate(groups).T.round(9)
    if len(set(tokens)) < 2 or len(set(rewards)) < 2:
        return None
    return rank_correlation(tokens, rewards)


def _reasons(branches: Sequence[Row]) -> list[tuple[str, int]]:
    counts = Counter(branch["fault"]["reason"] for branch in branches if branch["fault"])
    return counts.most_common(REASONS)


def _share(value: float) -> str:
    return f"{value:.0%}"
