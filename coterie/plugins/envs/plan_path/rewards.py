"""Rewards of Plan-Path: three forms of the team's reward, and the roles' local components.

Source: PettingLLMs, arXiv 2510.11062 (Plan-Path). Its team reward, max(0, (d_prev - d_now) / d_0) or 1 at the
goal, pays more than the goal for walking back from far away and, summed over turns, for going to and fro. It
is available as `paper`; the default is a form that does neither.

Guarantees for every message (bumps, to and fro, away and back, thousands of moves):

- Immediate credit, with `progress` and with `potential`: from any cell, with or without `max_moves`, no
  message has a component above that of the oracle's message (`illegal`, `empty`: below); so none earns more,
  whatever the weights. The same holds for plans in every language. A message that ends no closer earns the
  team nothing.
- Summed returns, with `potential`: with potentials as differences and counterfactuals left out, an episode's
  team components add up to (first - last) / first, at most 1, and no episode returns more than the oracle's,
  under any discount. With `progress` there is no such bound: hence `not_summable`.
- `paper`: no guarantee. A message may earn more than the oracle's.
"""

from __future__ import annotations

from typing import Literal

from coterie.plugins.envs.common import rewards
from coterie.plugins.envs.plan_path.grid import Walk

Form = Literal["progress", "potential", "paper"]

COMPONENTS = rewards.components("shortest")
WEIGHTS = rewards.weights(COMPONENTS, "shortest")


def team_rewards(form: Form, before: int, after: int, first: int) -> dict[str, float]:
    """The components that all roles share.

    `team` is the form with the goal (once). `progress` is the form without its bonus at the goal, for recipes
    that weigh the goal separately: 1.0 goal + 0.5 progress - 0.2 illegal (a team with a planner gives
    `plan_goal` and `plan_progress` the same weights).

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


def local_rewards(effect: Walk | None, *, empty: bool) -> dict[str, float]:
    """The components of one role's message; `shortest` is 1 where all its moves were on a shortest path."""
    shortest = float(effect is not None and effect.shortest)
    return rewards.message_rewards(effect, "shortest", shortest, empty=empty)
