"""What a walk is worth in Plan-Path: three forms of the team's reward, and the roles' local terms.

Source: PettingLLMs, arXiv 2510.11062 (Plan-Path). Its team term, max(0, (d_prev - d_now) / d_0) or 1
at the goal, pays more than the goal for walking back from far away and, summed over turns, for going
to and fro; so it is here by name, and the default is a form that neither does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from coterie.core.protocols import ComponentKind
from coterie.plugins.envs.plan_path.grid import Walk

Form = Literal["progress", "potential", "paper"]

COMPONENTS: Mapping[str, ComponentKind] = {
    "team": "increment",
    "goal": "level",
    "progress": "increment",
    # What a plan would earn on a fork. Nobody is paid it, so it is in no sum over turns: there the planner
    # has its share of what the executor earns, and a plan that nobody follows would be paid for every turn.
    "plan_team": "counterfactual",
    "plan_goal": "counterfactual",
    "plan_progress": "counterfactual",
    # Levels, so that a return summed over turns telescopes to the last message's value: writing many
    # good messages must not earn more than arriving with one.
    "format": "level",
    "legal": "level",
    "shortest": "level",
    # Increments: every bump and every silence costs, where they are given a negative weight.
    "illegal": "increment",
    "empty": "increment",
}

WEIGHTS: Mapping[str, float] = {
    "team": 1.0,
    "goal": 0.0,
    "progress": 0.0,
    "plan_team": 1.0,
    "plan_goal": 0.0,
    "plan_progress": 0.0,
    "format": 0.1,
    "legal": 0.1,
    "shortest": 0.8,
    "illegal": 0.0,
    "empty": 0.0,
}


def team_terms(form: Form, before: int, after: int, first: int) -> dict[str, float]:
    """The terms that everybody shares.

    `team` is the form, the goal included (once). `progress` is the form without its bonus at the goal,
    for recipes that weigh the goal by itself: 1.0 goal + 0.5 progress - 0.2 illegal (a team with a planner
    gives `plan_goal` and `plan_progress` the same weights).

    Args:
        before, after: steps to the goal before and after the walk.
        first: steps to the goal where the episode started, at least 1.

    Returns:
        progress: (before - after) / before in [0, 1), 1 at the goal. For immediate credit: summed over
            turns, going away (0) and coming back (> 0) pays.
        potential: (before - after) / first, signed. Sums to (first - last) / first, whatever the way.
        paper: max(0, (before - after) / first), 1 at the goal. For immediate credit only.
    """
    gain = before - after
    if form == "progress":
        progress = max(0.0, gain / max(before, 1))
    elif form == "potential":
        progress = gain / first
    else:
        progress = max(0.0, gain / first)
    arrived = after == 0
    return {
        "team": 1.0 if arrived and form != "potential" else progress,
        "goal": float(arrived),
        "progress": progress,
    }


def local_terms(message: Walk | None, *, empty: bool) -> dict[str, float]:
    """The terms of one role's message: what became of it, None where it couldn't be read.

    An empty message earns none of them: silence is the trap that small policies fall into, so it is
    never worth a format point.
    """
    if message is None or empty:
        return {"format": 0.0, "legal": 0.0, "shortest": 0.0, "illegal": 0.0, "empty": float(empty)}
    legal = message.tried - len(message.illegal)
    return {
        "format": 1.0,
        "legal": legal / message.tried if message.tried else 0.0,
        "shortest": float(message.shortest),
        "illegal": float(bool(message.illegal)),
        "empty": 0.0,
    }
