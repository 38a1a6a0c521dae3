"""The components that a game pays in, and what a message earns by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from coterie.core.types import ComponentKind


class Message(Protocol):
    """What became of a role's message: a walk, or assignments."""

    @property
    def written(self) -> int:
        """How many words were written, those beyond the limit included."""

    @property
    def tried(self) -> int:
        """How many were played or refused; what comes after a stop, or after the end, is left untried."""

    @property
    def illegal(self) -> tuple[tuple[int, str], ...]:
        """(number of the word counted from 1, what was wrong with it) where one was refused."""


def components(quality: str, *finer: str) -> Mapping[str, ComponentKind]:
    """What a game's steps may pay.

    Args:
        quality: the game's own term of a message, beside `format` and `legal`.
        finer: further gains that everybody shares, beside `team` and `progress`.
    """
    shared: dict[str, ComponentKind] = {"team": "increment", "goal": "potential", "progress": "increment"}
    shared |= dict.fromkeys(finer, "increment")
    return {
        **shared,
        # What a plan would earn on a fork. Nobody is paid it, so it is in no sum over turns: there the
        # planner has its share of what the executor earns, and a plan that nobody follows would be paid for
        # every turn.
        **{f"plan_{name}": "counterfactual" for name in shared},
        # Levels, so that a return summed over turns telescopes to the last message's value: many good
        # messages must not earn more than one that reaches the goal.
        "format": "potential",
        "legal": "potential",
        quality: "potential",
        # Increments: every illegal word and every silence costs, where they are given a negative weight.
        "illegal": "increment",
        "empty": "increment",
    }


def weights(names: Mapping[str, ComponentKind], quality: str) -> Mapping[str, float]:
    """The paper's: the team's gain, and .1 format, .1 legal, .8 quality of one's own message."""
    paper = {"team": 1.0, "plan_team": 1.0, "format": 0.1, "legal": 0.1, quality: 0.8}
    return {name: paper.get(name, 0.0) for name in names}


def message_terms(message: Message | None, quality: str, value: float, *, empty: bool) -> dict[str, float]:
    """The terms of one role's message: what became of it, None where it couldn't be read.

    An empty message earns none of them: silence is the trap that small policies fall into, so it is never
    worth a format point.

    Args:
        value: the quality of a message that can be read and isn't empty, in [0, 1].
    """
    if message is None or empty:
        return {"format": 0.0, "legal": 0.0, quality: 0.0, "illegal": 0.0, "empty": float(empty)}
    legal = message.tried - len(message.illegal)
    return {
        "format": 1.0,
        "legal": legal / message.tried if message.tried else 0.0,
        quality: value,
        "illegal": float(bool(message.illegal)),
        "empty": 0.0,
    }
