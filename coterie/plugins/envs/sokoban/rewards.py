"""What a message is worth in Sokoban: two forms of the team's reward, and the roles' local terms.

Source: PettingLLMs, arXiv 2510.11062 (Sokoban): team = boxes on targets / boxes, local .8 for a board
without deadlock. What differs and why: boxes on targets is the value of a state, and paying it at every
turn pays most for a box that is brought home and left there while nothing else is done. So the team is
paid gains: relative ones for immediate credit, signed ones where returns sum over turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from coterie.core.protocols import ComponentKind
from coterie.plugins.envs.sokoban.board import Board, Walk

Form = Literal["progress", "potential"]

COMPONENTS: Mapping[str, ComponentKind] = {
    "team": "increment",
    "goal": "level",
    "progress": "increment",
    "pushed": "increment",
    # What a plan would earn on a fork. Nobody is paid it, so it is in no sum over turns: there the planner
    # has its share of what the executor earns, and a plan that nobody follows would be paid for every turn.
    "plan_team": "counterfactual",
    "plan_goal": "counterfactual",
    "plan_progress": "counterfactual",
    "plan_pushed": "counterfactual",
    # Levels, so that a return summed over turns telescopes to the last message's value: walking about
    # safely for many turns must not earn more than one good message.
    "format": "level",
    "legal": "level",
    "safe": "level",
    # Increments: every bump and every silence costs, where they are given a negative weight.
    "illegal": "increment",
    "empty": "increment",
}

WEIGHTS: Mapping[str, float] = {
    "team": 1.0,
    "goal": 0.0,
    "progress": 0.0,
    "pushed": 0.0,
    "plan_team": 1.0,
    "plan_goal": 0.0,
    "plan_progress": 0.0,
    "plan_pushed": 0.0,
    "format": 0.1,
    "legal": 0.1,
    "safe": 0.8,
    "illegal": 0.0,
    "empty": 0.0,
}


def team_terms(form: Form, board: Board, before: int, after: int) -> dict[str, float]:
    """The terms that everybody shares.

    `pushed` is the finer signal, for recipes: with one box, `team` is 0 until the board is solved.

    Args:
        before, after: the boxes before and after the message.

    Returns:
        team, progress: (left before - left after) over the boxes left before, at least 0 (`progress`; 1
            exactly when solved), or over those left at the start, signed (`potential`; sums to 1 when
            solved).
        goal: 1 when solved.
        pushed: the same with `Board.distance` for the boxes left: 1 exactly when solved.
    """
    gain = board.left(before) - board.left(after)
    nearer = board.distance(before) - board.distance(after)
    if form == "progress":
        progress = max(0.0, gain / max(1, board.left(before)))
        pushed = max(0.0, nearer / max(1, board.distance(before)))
    else:
        progress = gain / max(1, board.left(board.boxes))
        pushed = nearer / max(1, board.distance(board.boxes))
    return {
        "team": progress,
        "goal": float(after == board.targets),
        "progress": progress,
        "pushed": pushed,
    }


def local_terms(message: Walk | None, *, empty: bool, deadlocked: bool) -> dict[str, float]:
    """The terms of one role's message: what became of it, None where it couldn't be read.

    An empty message earns none of them: silence is the trap that small policies fall into, so it is
    never worth a format point; and a message with an illegal move is not safe, whatever it left alone.

    Args:
        deadlocked: the board after the message can be seen to be lost.
    """
    if message is None or empty:
        return {"format": 0.0, "legal": 0.0, "safe": 0.0, "illegal": 0.0, "empty": float(empty)}
    legal = message.tried - len(message.illegal)
    return {
        "format": 1.0,
        "legal": legal / message.tried if message.tried else 0.0,
        "safe": float(bool(message.tried) and not message.illegal and not deadlocked),
        "illegal": float(bool(message.illegal)),
        "empty": 0.0,
    }
