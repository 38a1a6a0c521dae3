"""Who acts next: the one rule of a turn's course."""

from __future__ import annotations

from typing import Any, NamedTuple

from coterie.core.protocols import Environment, Team
from coterie.core.types import Step


class Stage(NamedTuple):
    """A stage that is about to be played."""

    turn: int
    stage: int
    """Index of the stage in the turn."""
    roles: tuple[str, ...]
    """Roles that act at once."""


def acting_roles(environment: Environment, team: Team, state: Any, stage: int) -> tuple[str, ...]:
    """The roles that act in a state: those that the environment names, else those of `team.order`."""
    named = environment.acting_roles(state)
    return team.order[stage] if named is None else named


def next_stage(
    environment: Environment, team: Team, turn: int, stage: int, step: Step
) -> tuple[Stage | None, bool]:
    """The stage after a step, and whether the environment says that the episode is over.

    The stage is None where the episode ends: the environment ended it, or the team's turns are used up.
    """
    named = environment.acting_roles(step.state)
    if named == ():
        return None, True
    turn_over = step.turn_over or (named is None and stage + 1 >= len(team.order))
    turn, stage = (turn + 1, 0) if turn_over else (turn, stage + 1)
    if turn >= team.max_turns:
        return None, False
    return Stage(turn, stage, team.order[stage] if named is None else named), False
