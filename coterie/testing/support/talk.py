"""Pay for talk: an increment that any answer earns, turn after turn, up to a bound or without one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.core.errors import PolicyFault
from coterie.core.protocols import StepContext
from coterie.core.types import Action, Step, Task
from coterie.core.types.seeding import generator
from coterie.testing.support.cycles import summable
from coterie.testing.support.episodes import (
    PendingStage,
    Players,
    following_stage,
    initial_stage,
    stepped,
    unreadable,
)
from coterie.testing.support.failure import require

_TASKS, _STAGES = 3, 8
"""Tasks that are talked through; stages of each."""
_ANSWERS = 3
"""Different answers that are tried in a state."""
_TIMES = 3
"""Answers that must be paid alike; steps of each episode in which they must be."""
_WORDS = " and so on" * 20
_TURNS = 10**6


@dataclass(slots=True)
class _Heard:
    """What talk earned in one episode, by component, a value a step that paid it."""

    alike: dict[str, list[float]] = field(default_factory=dict)
    by_the_word: dict[str, list[float]] = field(default_factory=dict)
    takes: set[str] = field(default_factory=set)
    """Components that were taken from every answer to some state: they may be luck, as often bad as good."""
    ends: bool = False
    """Whether some answer ended the game."""


async def check_talk(
    env: Any, name: str, tasks: Sequence[Task], team: Players, seed: int, repeatable: Sequence[str]
) -> None:
    """Require that answers aren't paid for being given, in increments that may be summed.

    In the states of a few episodes it compares what different answers earn. A component fails

    - where every readable answer earns the same, or every one, those that can't be read among them;
    - where each answer earns more when words that say nothing are appended to it;

    in three steps of each episode. So a bonus with a bound, which no way back to a state shows (see
    `check_cycles`), is found too. A game that never ends an episode by itself is left out, as there.

    Args:
        repeatable: components that may pay so on purpose, such as one for each turn that is survived.

    Raises:
        ConformanceError: a component that talk earns.
    """
    weights = {at: weight for at, weight in summable(env, name, repeatable).items() if weight > 0}
    if not weights:
        return
    heard = [await _listen(env, task, team, seed, tuple(weights)) for task in tasks[:_TASKS]]
    if not any(episode.ends for episode in heard):
        return
    for component in weights:
        steady = not any(component in episode.takes for episode in heard)
        for how, pays in (
            ("for words that say nothing", [episode.by_the_word.get(component, []) for episode in heard]),
            ("for any answer", [episode.alike.get(component, []) for episode in heard]),
        ):
            require(
                not steady or any(len(values) < _TIMES for values in pays),
                f"'{component}' is paid {how}: {len(pays[0])} steps of task '{tasks[0].id}' paid "
                f"{sum(pays[0]):.3g} so; where a return sums over turns, talking on beats ending the game",
                f"{name}.components",
                fix=f"pay for what an answer changes, or list it: not_summable = ('{component}',); where it "
                f"is meant so: check_environment(..., repeatable=['{component}'])",
            )


async def _listen(env: Any, task: Task, team: Players, seed: int, components: Sequence[str]) -> _Heard:
    """One episode: each state is stepped with several answers, and goes on by one that doesn't end it."""
    rng = generator(seed, f"talk of {task.id}", "check_environment")
    heard, pending = _Heard(), initial_stage(env, env.reset(task, seed), team)
    for _ in range(_STAGES):
        if pending is None:
            break
        ctx = StepContext(task=task, turn=pending.turn, seed=int(rng.integers(2**63)))

        async def taken(actions: Mapping[str, Action], at: PendingStage = pending, ctx: Any = ctx) -> Step:
            return await stepped(env, at, actions, ctx)

        answers = _different(env, pending, team, rng)
        steps = [await taken(actions) for actions in answers]
        longer = [await taken(_lengthened(env, pending, team, actions)) for actions in answers]
        unread = await taken({role: unreadable() for role in pending.roles})
        for component in components:
            paid = [_paid(step, component) for step in steps]
            more = [_paid(step, component) - before for step, before in zip(longer, paid, strict=True)]
            every = paid if len(paid) >= _TIMES else [*paid, _paid(unread, component)]
            if len(every) >= _TIMES and paid[0] > 0 and len(set(every)) == 1:
                heard.alike.setdefault(component, []).append(paid[0])
            if max(paid) < 0:
                heard.takes.add(component)
            if min(more) > 0:
                heard.by_the_word.setdefault(component, []).append(min(more))
        following = [following_stage(env, pending, step, _TURNS, team) for step in steps]
        going = [after for after in following if after is not None]
        heard.ends |= len(going) < len(following)
        pending = going[int(rng.integers(len(going)))] if going else None
    return heard


def _different(
    env: Any, pending: PendingStage, team: Players, rng: np.random.Generator
) -> list[dict[str, Action]]:
    """Readable answers of the stage's roles with different texts; if none can be read, one that can't."""
    observations = {role: env.observe(pending.state, role) for role in pending.roles}
    different: dict[tuple[str, ...], dict[str, Action]] = {}
    for _ in range(3 * _ANSWERS):
        actions = team.actions(observations, rng)
        if len(different) < _ANSWERS and not any(action.fault for action in actions.values()):
            different.setdefault(tuple(action.text for action in actions.values()), actions)
    return list(different.values()) or [{role: unreadable() for role in pending.roles}]


def _lengthened(
    env: Any, pending: PendingStage, team: Players, actions: Mapping[str, Action]
) -> dict[str, Action]:
    """The actions with words appended, as the roles read them."""
    longer = {}
    for role, action in actions.items():
        text = action.text + _WORDS
        parsed = text if action.parsed == action.text else action.parsed
        if role in team.role_plugins:
            try:
                parsed = team.role_plugins[role].parse(text, env.observe(pending.state, role))
            except PolicyFault as fault:
                longer[role] = unreadable(text, str(fault))
                continue
        longer[role] = dataclasses.replace(action, text=text, parsed=parsed)
    return longer


def _paid(step: Step, component: str) -> float:
    """What a step pays of a component, to the team and to roles."""
    return sum(float(value or 0) for (_, at), value in step.scores.items() if at == component)
