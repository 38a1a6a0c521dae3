"""Who acts next, and what a role remembers of its turns: the rules of a turn's course."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from coterie.core.errors import PluginError
from coterie.core.plugins.origin import origin_of, plugin_call
from coterie.core.protocols import Environment
from coterie.core.rollout.contracts import check_acting
from coterie.core.types import MAX_STAGES, Action, HistoryEntry, Message, Step

Order = tuple[tuple[str, ...], ...]
"""The stages of a turn: `Team.order`."""
History = Mapping[str, tuple[HistoryEntry, ...]]
"""By role: its earlier decisions in the episode, oldest first."""


class Stage(NamedTuple):
    """A stage that is about to be played."""

    turn: int
    stage: int
    """Index of the stage in the turn."""
    roles: tuple[str, ...]
    """Roles that act at once."""


def named_roles(environment: Environment, order: Order, state: Any) -> tuple[str, ...] | None:
    """The roles that the environment names to act in a state; None: `order` decides.

    Raises:
        PluginError: it names a role that the team doesn't have, or no tuple of roles.
    """
    with plugin_call(environment, "acting_roles"):
        named = environment.acting_roles(state)
    if named:
        check_acting(environment, named, [role for stage in order for role in stage])
    return named


def first_stage(environment: Environment, order: Order, state: Any) -> Stage | None:
    """The stage of an initial state; None where the episode is over before any role acts."""
    named = named_roles(environment, order, state)
    roles = order[0] if named is None else named
    return Stage(0, 0, roles) if roles else None


def next_stage(
    environment: Environment,
    order: Order,
    max_turns: int,
    before: Stage,
    step: Step,
    max_stages: int = MAX_STAGES,
) -> tuple[Stage | None, bool]:
    """The stage after a step, and whether the environment says that the episode is over.

    The stage is None where the episode ends: the environment ended it, or the team's turns are used up.

    Raises:
        PluginError: the environment doesn't end a turn of `max_stages` stages.
    """
    named = named_roles(environment, order, step.state)
    if named == ():
        return None, True
    turn_over = step.turn_over or (named is None and before.stage + 1 >= len(order))
    turn, stage = (before.turn + 1, 0) if turn_over else (before.turn, before.stage + 1)
    if turn >= max_turns:
        return None, False
    if stage >= max_stages:
        raise PluginError(
            f"{origin_of(environment)}: acting_roles named roles in {stage:,} stages of turn {turn + 1} and "
            "still names some, so the turn doesn't end",
            path="team.max_stages",
            fix="return () from `acting_roles` where the episode is over, or `Step(turn_over=True)` from "
            "`step` where the turn is; set team.max_stages higher if a turn is meant to be longer",
        )
    return Stage(turn, stage, order[stage] if named is None else named), False


def without_oldest(messages: Sequence[Message], first: int, now: int) -> Iterator[tuple[Message, ...]]:
    """A conversation without its oldest turn, then without its two oldest, and so on.

    Args:
        first: number of messages of the first prompt, which holds the task and stays.
        now: index of the first message of the turn that begins, which stays too.
    """
    answers = [message["role"] in ("assistant", "tool") for message in messages]
    for index in range(first + 1, min(now + 1, len(messages))):
        if answers[index - 1] and not answers[index]:
            yield (*messages[:first], *messages[index:])


def extended(
    history: History,
    turn: int,
    prompts: Mapping[str, tuple[Any, Sequence[Message]]],
    actions: Mapping[str, Action],
    info: Mapping[str, Any],
) -> dict[str, tuple[HistoryEntry, ...]]:
    """The history after a stage.

    Args:
        prompts: by role, the observation and the messages of its prompt.
        actions: by role, the action that was played.
        info: `Step.info`.
    """
    after = dict(history)
    for role, action in actions.items():
        observation, messages = prompts[role]
        entry = HistoryEntry(
            turn=turn, observation=observation, messages=tuple(messages), action=action, info=info
        )
        after[role] = (*after.get(role, ()), entry)
    return after
