"""Rewards of Sudoku: two forms of the team's reward, and the roles' local components.

Source: PettingLLMs, arXiv 2510.11062 (Sudoku), whose environment checks neither the clues nor that the
solution is unique. Here a cell counts once, where it is as in the only solution: writing a right digit again,
or wrong and right digits in turn, earns nothing.

Guarantees for every message (refilling, spoiling and fixing, clues, thousands of assignments):

- Immediate credit, with either form: from any grid, with or without `max_cells`, no message has a component
  above that of the oracle's message (`illegal`, `empty`: below); so none earns more, whatever the weights. A
  plan in the compact rendering can name open cells only, and the oracle's is the best of those. A message
  after which no fewer cells are left earns the team nothing.
- Summed returns, with `potential`: with potentials as differences and counterfactuals left out, an episode's
  team components add up to (first - last) / first, at most 1, and no episode returns more than the oracle's,
  under any discount. With `progress` there is no such bound: hence `not_summable`.
"""

from __future__ import annotations

from typing import Literal

from coterie.plugins.envs.common import rewards
from coterie.plugins.envs.sudoku.fills import Fill

Form = Literal["progress", "potential"]

COMPONENTS = rewards.components("correct")
WEIGHTS = rewards.weights(COMPONENTS, "correct")


def team_rewards(form: Form, before: int, after: int, first: int) -> dict[str, float]:
    """The components that all roles share.

    `team` is the form with the solution (once). `progress` is the form without its bonus at the solution, for
    recipes that weigh `goal` separately.

    Args:
        before, after: cells that are empty or wrong before and after the message.
        first: cells that were empty where the episode started, at least 1.

    Returns:
        progress: max(0, before - after) / before, 1 when solved. For immediate credit: summed over turns,
            spoiling cells (0) and fixing them (> 0) pays.
        potential: (before - after) / first, signed. Sums to (first - last) / first, whatever the way.
    """
    gain = before - after
    progress = max(0.0, gain / max(before, 1)) if form == "progress" else gain / first
    done = after == 0
    return {
        "team": 1.0 if done and form == "progress" else progress,
        "goal": float(done),
        "progress": progress,
    }


def local_rewards(effect: Fill | None, *, empty: bool) -> dict[str, float]:
    """The components of one role's message; `correct`: the share of its assignments that made a cell
    right."""
    correct = effect.correct if effect is not None else 0.0
    return rewards.message_rewards(effect, "correct", correct, empty=empty)
