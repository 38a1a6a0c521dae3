"""What a message is worth in Sudoku: two forms of the team's reward, and the roles' local terms.

Source: PettingLLMs, arXiv 2510.11062 (Sudoku), whose environment checks neither the clues nor that there is
one solution. Here a cell counts where it is as in the only solution, once: writing a right digit again, or
wrong and right in turn, earns nothing.

What holds, whatever is written (refilling, spoiling and mending, clues, thousands of assignments):

- Immediate credit, with either form: from any grid, with or without `max_cells`, no message has a term above
  that of the oracle's message (`illegal`, `empty`: below); so none earns more, whatever the weights. A plan
  in the compact rendering can name open cells only, and the oracle's is the best of those. A message after
  which no fewer cells are left earns the team nothing.
- Summed returns, with `potential`: with levels as differences and counterfactuals left out, an episode's team
  terms add up to (first - last) / first, at most 1, and no episode returns more than the oracle's, under any
  discount. With `progress` there is no such bound: hence `not_summable`.
"""

from __future__ import annotations

from typing import Literal

from coterie.plugins.envs.common import rewards as terms
from coterie.plugins.envs.sudoku.fills import Fill

Form = Literal["progress", "potential"]

COMPONENTS = terms.components("correct")
WEIGHTS = terms.weights(COMPONENTS, "correct")


def team_terms(form: Form, before: int, after: int, first: int) -> dict[str, float]:
    """The terms that everybody shares.

    `team` is the form, the solution included (once). `progress` is the form without its bonus at the
    solution, for recipes that weigh `goal` by itself.

    Args:
        before, after: cells that are empty or wrong before and after the message.
        first: cells that were empty where the episode started, at least 1.

    Returns:
        progress: max(0, before - after) / before, 1 when solved. For immediate credit: summed over turns,
            spoiling cells (0) and mending them (> 0) pays.
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


def local_terms(message: Fill | None, *, empty: bool) -> dict[str, float]:
    """The terms of one role's message; `correct` is the share of its assignments that made a cell right."""
    correct = message.correct if message is not None else 0.0
    return terms.message_terms(message, "correct", correct, empty=empty)
