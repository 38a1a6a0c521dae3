"""Rewards of Sokoban: two forms of the team's reward, and the roles' local components.

Source: PettingLLMs, arXiv 2510.11062 (Sokoban): team = boxes on targets / boxes, local .8 for a board without
deadlock. What differs and why: the boxes on targets are the value of a state, and paid at every turn they pay
most for leaving one box on a target and doing nothing else. So the team is paid gains: relative ones for
immediate credit, signed ones where returns sum over turns.

Guarantees for every message (bumps, to and fro, on and off a target, thousands of moves):

- Immediate credit, with either form: from any board that the oracle solves, no message has a component above
  that of the oracle's whole message (`illegal`, `empty`: below); so none earns more, whatever the weights.
  This doesn't hold where `max_moves` or `max_pushes_planned` shortens the oracle's message: a box may have to
  leave its target on the way, and then another message is paid more. A message that moves no box earns the
  team nothing.
- Summed returns, with `potential`: with potentials as differences and counterfactuals left out, an episode's
  team components add up to (first - last) / first, of boxes left (`team`) or pushes left (`pushed`), at most
  1, and no episode returns more than one that solves with its first message, under any discount. With
  `progress` there is no such bound: hence `not_summable`.
"""

from __future__ import annotations

from typing import Literal

from coterie.plugins.envs.common import rewards
from coterie.plugins.envs.sokoban.board import Board, Walk

Form = Literal["progress", "potential"]

COMPONENTS = rewards.components("safe", "pushed")
WEIGHTS = rewards.weights(COMPONENTS, "safe")


def team_rewards(form: Form, board: Board, before: int, after: int) -> dict[str, float]:
    """The components that all roles share.

    `pushed` is a finer signal for recipes: with one box, `team` is 0 until the board is solved.

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


def local_rewards(effect: Walk | None, *, empty: bool, deadlocked: bool) -> dict[str, float]:
    """The components of one role's message; `safe`: no move was illegal, and no deadlock is detected after
    it.

    A message with an illegal move is not safe, whatever its other moves do.

    Args:
        deadlocked: a deadlock is detected on the board after the message.
    """
    safe = effect is not None and bool(effect.tried) and not effect.illegal and not deadlocked
    return rewards.message_rewards(effect, "safe", float(safe), empty=empty)
