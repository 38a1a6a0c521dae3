"""The reward components of the games, and the scores of a single message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from coterie.core.types import ComponentKind


class Effect(Protocol):
    """The effect of a role's message: a walk, or a fill."""

    @property
    def written(self) -> int:
        """The number of items in the message, those beyond the limit included."""

    @property
    def tried(self) -> int:
        """The number of items played or refused; those after a stop, or after the end, are not tried."""

    @property
    def illegal(self) -> tuple[tuple[int, str], ...]:
        """(number of the item counted from 1, reason) of every refused item."""


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
