"""What a message is worth in Sokoban: two forms of the team's reward, and the roles' local terms.

Source: PettingLLMs, arXiv 2510.11062 (Sokoban): team = boxes on targets / boxes, local .8 for a board
without deadlock. What differs and why: boxes on targets is the value of a state, and paying it at every
turn pays most for a box that is brought home and left there while nothing else is done. So the team is
paid gains: relative ones for immediate credit, signed ones where returns sum over turns.

What holds, whatever is written (bumps, to and fro, on and off a target, thousands of moves):

- Immediate credit, with either form: from any board that the oracle solves, no message has a term above that
  of the oracle's whole message (`illegal`, `empty`: below); so none earns more, whatever the weights. Where
  `max_moves` or `max_pushes_planned` cuts the oracle's this is not so: a box may have to leave its target on
  the way, and then another message is paid more. A message that moves no box earns the team nothing.
- Summed returns, with `potential`: with levels as differences and counterfactuals left out, an episode's team
  terms add up to (first - last) / first, of boxes left (`team`) or pushes left (`pushed`), at most 1, and no
  episode returns more than one that solves with its first message, under any discount. With `progress` there
  is no such bound: hence `not_summable`.
"""

from __future__ import annotations

from typing import Literal

from coterie.plugins.envs.common import rewards as terms
from coterie.plugins.envs.sokoban.board import Board, Walk

Form = Literal["progress", "potential"]

COMPONENTS = terms.components("safe", "pushed")
WEIGHTS = terms.weights(COMPONENTS, "safe")


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
    """The terms of one role's message; `safe` where no move was illegal and the boxes aren't stuck after it.

    A message with an illegal move is not safe, whatever it left alone.

    Args:
        deadlocked: the board after the message can be seen to be lost.
    """
    safe = message is not None and bool(message.tried) and not message.illegal and not deadlocked
    return terms.message_terms(message, "safe", float(safe), empty=empty)
