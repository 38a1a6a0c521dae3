"""What the items of a message do to a board, and what that pays: the reward components of the games."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from coterie.core.types import ComponentKind

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a message does to the board, such as a walk. Its items are moves, assignments, ..."""

    items: tuple[Any, ...]
    """As written, without those beyond the limit."""
    written: int
    """The number of items in the message, those beyond the limit included."""
    tried: int = 0
    """The number of items played or refused; those after a stop, or after the end, are not tried."""
    illegal: tuple[tuple[int, str], ...] = ()
    """(number of the item counted from 1, reason) of every refused item."""
    readable: bool = True

    @property
    def legal(self) -> int:
        """The number of items that were played."""
        return self.tried - len(self.illegal)


def play(
    items: Sequence[T],
    attempt: Callable[[T], str],
    over: Callable[[], bool],
    *,
    limit: int | None,
    skip: bool,
) -> dict[str, Any]:
    """Play items in order, until the game is over, up to the limit, or (unless `skip`) the first illegal one.

    Args:
        attempt: plays an item, or returns the reason why it is illegal.

    Returns:
        The fields of an `Effect`.
    """
    within_limit, tried = tuple(items[:limit]), 0
    illegal: list[tuple[int, str]] = []
    for number, item in enumerate(within_limit, 1):
        if over():
            break
        tried = number
        if reason := attempt(item):
            illegal.append((number, reason))
            if not skip:
                break
    return {"items": within_limit, "written": len(items), "tried": tried, "illegal": tuple(illegal)}


def components(quality: str, *finer: str) -> Mapping[str, ComponentKind]:
    """The components of a game's steps, with their kinds.

    Args:
        quality: the game's own component of a message, beside `format` and `legal`.
        finer: further shared increments, beside `team` and `progress`.
    """
    shared: dict[str, ComponentKind] = {"team": "increment", "goal": "potential", "progress": "increment"}
    shared |= dict.fromkeys(finer, "increment")
    return {
        **shared,
        # What a plan would earn on a fork. No role earns it, so no sum over turns includes it: there the
        # planner shares the executor's rewards, and a plan that is not followed would be paid in every turn.
        **{f"plan_{name}": "counterfactual" for name in shared},
        # Potentials, so that a return that sums over turns telescopes to the last message's value: many good
        # messages must not earn more than one message that reaches the goal.
        "format": "potential",
        "legal": "potential",
        quality: "potential",
        # Increments: with a negative weight every illegal item and every empty message costs.
        "illegal": "increment",
        "empty": "increment",
    }


def weights(names: Mapping[str, ComponentKind], quality: str) -> Mapping[str, float]:
    """The paper's weights: 1 for the team's gain; .1 format, .1 legal, .8 quality of the role's own
    message."""
    paper = {"team": 1.0, "plan_team": 1.0, "format": 0.1, "legal": 0.1, quality: 0.8}
    return {name: paper.get(name, 0.0) for name in names}


def team_rewards(form: str, before: int, after: int, first: int) -> dict[str, float]:
    """The components that all roles share.

    `team` is the form with the end (once). `progress` is the form without its bonus at the end, for recipes
    that weigh `goal` separately.

    Args:
        before, after: what was left to do before and after the message, such as steps to the goal.
        first: what was left where the episode started, at least 1.
    """
    progress, done = gain(form, before, after, first), after == 0
    return {
        "team": 1.0 if done and form != "potential" else progress,
        "goal": float(done),
        "progress": progress,
    }


def gain(form: str, before: int, after: int, first: int) -> float:
    """What getting nearer pays; arguments as in `team_rewards`.

    Returns:
        progress: max(0, before - after) / before, 1 at the end. For immediate credit: summed over turns,
            going away (0) and coming back (> 0) pays.
        potential: (before - after) / first, signed. Sums to (first - last) / first, whatever the way.
        paper: max(0, (before - after) / first). For immediate credit only.
    """
    if form == "progress":
        return max(0.0, (before - after) / max(before, 1))
    signed = (before - after) / max(first, 1)
    return signed if form == "potential" else max(0.0, signed)


def message_rewards(effect: Effect | None, quality: str, value: float, *, empty: bool) -> dict[str, float]:
    """The components of one role's message.

    An empty message earns none of them, not even `format`: small policies easily collapse to empty messages.

    Args:
        effect: the message's effect; None where it couldn't be read.
        value: the quality of a message that can be read and isn't empty, in [0, 1].
    """
    if effect is None or empty:
        return {"format": 0.0, "legal": 0.0, quality: 0.0, "illegal": 0.0, "empty": float(empty)}
    legal = effect.tried - len(effect.illegal)
    return {
        "format": 1.0,
        "legal": legal / effect.tried if effect.tried else 0.0,
        quality: value,
        "illegal": float(bool(effect.illegal)),
        "empty": 0.0,
    }
