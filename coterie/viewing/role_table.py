"""What each role did in a step, over all actions that were sampled for it: where a role fails, and how."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.api.coach_statistics import rank_correlation
from coterie.api.episodes import RecordedTree, Row, mean_advantage, tokens_of
from coterie.viewing.episode_fields import repeats_of

LEAST = 8
"""Fewest actions for which a correlation is shown."""


@dataclass(frozen=True, slots=True)
class RoleInStep:
    """One role in one step. Shares are of its actions; None where there is nothing to say."""

    step: int
    role: str
    actions: int
    """Actions that were sampled, those that the system lost left out."""
    success: float | None
    """Mean success of the step's episodes, each with its share of its tree; None: none has an outcome."""
    reward: float | None
    """Mean of those that have one."""
    advantage: float | None
    """Mean absolute advantage of the trained ones."""
    tokens: float | None
    """Mean length."""
    missing: float
    """Share without a reward, since a score is missing."""
    unparsed: float
    """Share that its parser could not read."""
    empty: float
    finish_length: float
    """Share that `max_new_tokens` cut off."""
    repeats: float | None
    """Share of the committed actions that repeat the last action of another role."""
    distinct: float | None
    """Different texts among the siblings of a prompt, as a share of them; mean over prompts with several."""
    length_reward: float | None
    """Rank correlation of length and reward, from -1 to 1; None: fewer than 8 actions, or all equal."""
    lost: int
    """Actions that the system lost."""
    fault: str
    """Reason of the first action that could not be parsed; empty: none."""


def roles_in_step(trees: Sequence[RecordedTree]) -> list[RoleInStep]:
    """One entry a role, in the order in which they first acted. The trees are those of one step."""
    branches: dict[str, list[Row]] = {}
    groups: dict[str, list[list[Row]]] = {}
    committed: dict[str, dict[int, bool]] = {}
    outcomes: list[tuple[float, float]] = []
    """(share, success) of the episodes that have one."""
    for tree in trees:
        for node in tree.nodes.values():
            for role, decision in node.decisions.items():
                branches.setdefault(role, []).extend(decision.branches)
                groups.setdefault(role, []).append(decision.branches)
        for episode in tree.episodes():
            if episode.success is not None:
                outcomes.append((episode.share, float(episode.success)))
            actions = list(episode.actions)
            repeated = {id(action.branch) for action in repeats_of(actions)}
            for action in actions:
                place = committed.setdefault(action.role, {})
                place[id(action.branch)] = id(action.branch) in repeated or place.get(
                    id(action.branch), False
                )
    step, weight = trees[0].step if trees else 0, math.fsum(share for share, _ in outcomes)
    success = math.fsum(share * value for share, value in outcomes) / weight if weight else None
    return [
        _role(step, success, role, rows, groups[role], committed.get(role, {}))
        for role, rows in branches.items()
    ]


def _role(
    step: int,
    success: float | None,
    role: str,
    every: Sequence[Row],
    groups: Sequence[Sequence[Row]],
    committed: dict[int, bool],
) -> RoleInStep:
    rows = [row for row in every if row["fault"] is None or row["fault"]["kind"] == "policy"]
    faults = [row["fault"]["reason"] for row in rows if row["fault"] is not None]
    rewarded = [row for row in rows if row["reward"] is not None]
    advantages = [abs(value) for row in rows if (value := mean_advantage(row)) is not None]
    texts = [[" ".join(row["completion"].split()) for row in group] for group in groups if len(group) > 1]
    return RoleInStep(
        step=step,
        role=role,
        actions=len(rows),
        success=success,
        reward=_mean(row["reward"] for row in rewarded),
        advantage=_mean(advantages),
        tokens=_mean(map(tokens_of, rows)),
        missing=_share(len(rows) - len(rewarded), rows),
        unparsed=_share(len(faults), rows),
        empty=_share(sum(not row["completion"].strip() for row in rows), rows),
        finish_length=_share(
            sum(bool(r["calls"]) and r["calls"][-1]["finish"] == "length" for r in rows), rows
        ),
        repeats=_mean(map(float, committed.values())),
        distinct=_mean(len(set(group)) / len(group) for group in texts),
        length_reward=_correlation(
            [float(tokens_of(row)) for row in rewarded], [row["reward"] for row in rewarded]
        ),
        lost=len(every) - len(rows),
        fault=faults[0] if faults else "",
    )


def _correlation(lengths: Sequence[float], rewards: Sequence[float]) -> float | None:
    if len(lengths) < LEAST or len(set(lengths)) < 2 or len(set(rewards)) < 2:
        return None
    return rank_correlation(np.asarray(lengths), np.asarray(rewards))


def _share(count: int, rows: Sequence[Row]) -> float:
    return count / len(rows) if rows else 0.0


def _mean(values: Iterable[float]) -> float | None:
    every = list(values)
    return math.fsum(every) / len(every) if every else None
