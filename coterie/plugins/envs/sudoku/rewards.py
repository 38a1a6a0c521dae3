"""What a message is worth in Sudoku: two forms of the team's reward, and the roles' local terms.

Source: PettingLLMs, arXiv 2510.11062 (Sudoku), whose environment checks neither the clues nor that there is
one solution. Here a cell counts where it is as in the only solution, once: writing a right digit again, or
wrong and right in turn, earns nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from coterie.core.protocols import ComponentKind
from coterie.plugins.envs.sudoku.fills import Fill

Form = Literal["progress", "potential"]

COMPONENTS: Mapping[str, ComponentKind] = {
    "team": "increment",
    "goal": "level",
    "progress": "increment",
    # What a plan would earn on a fork. Nobody is paid it, so it is in no sum over turns: there the planner
    # has its share of what the executor earns, and a plan that nobody follows would be paid for every turn.
    "plan_team": "counterfactual",
    "plan_goal": "counterfactual",
    "plan_progress": "counterfactual",
    # Levels, so that a return summed over turns telescopes to the last message's value: many messages of
    # one good digit each must not earn more than one that solves the puzzle.
    "format": "level",
    "legal": "level",
    "correct": "level",
    # Increments: every illegal assignment and every silence costs, where they are given a negative weight.
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
    "correct": 0.8,
    "illegal": 0.0,
    "empty": 0.0,
}


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
    """The terms of one role's message: what became of it, None where it couldn't be read.

    An empty message earns none of them: silence is the trap that small policies fall into, so it is never
    worth a format point.
    """
    if message is None or empty:
        return {"format": 0.0, "legal": 0.0, "correct": 0.0, "illegal": 0.0, "empty": float(empty)}
    legal = message.tried - len(message.illegal)
    return {
        "format": 1.0,
        "legal": legal / message.tried if message.tried else 0.0,
        "correct": message.correct,
        "illegal": float(bool(message.illegal)),
        "empty": 0.0,
    }
