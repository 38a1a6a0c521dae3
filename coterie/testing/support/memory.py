"""Whether an environment remembers: its methods are called again, in another order and elsewhere."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.core.plugins import Plugin
from coterie.core.protocols import StepContext
from coterie.core.types import Step, Task
from coterie.core.types.seeding import generator
from coterie.discovery.members import Diagnoses
from coterie.testing.support.episodes import Players, following_stage, initial_stage, stepped, unreadable
from coterie.testing.support.failure import ConformanceError, require
from coterie.testing.support.opening import opened
from coterie.testing.support.promises import promise
from coterie.testing.support.values import fingerprint

_EPISODES = 3
"""Episodes whose calls are repeated."""


@dataclass(frozen=True, slots=True)
class _PlayedCall:
    """A call of a method, with what it gave during play."""

    method: str
    function: Callable[..., Awaitable[Any]]
    """Calls the method of an instance, its first argument."""
    arguments: tuple[Any, ...]
    gave: Any


async def check_memory(
    env: Any, name: str, tasks: Sequence[Task], team: Players, turns: int, seed: int
) -> None:
    """Require that states are all that an environment knows of an episode.

    Plays a few episodes, and repeats each call of `acting_roles`, `observe`, `step`, `outcome` and `diagnose`
    from the last to the first: on the same instance, then on another one.

    Raises:
        ConformanceError: a method gave something else.
    """
    promise("states are all that it knows of an episode")
    another = _another(env)
    calls: list[_PlayedCall] = []
    for number in range(_EPISODES):
        calls += await _played(env, tasks[number % len(tasks)], team, turns, seed + number)
    await _repeat(env, calls, name, "when it is called again, after other calls")
    if another is not None:
        async with opened(another, alone=True):
            await _repeat(another, calls, name, "on another instance with the same settings")


async def _repeat(instance: Any, calls: Sequence[_PlayedCall], name: str, where: str) -> None:
    """Repeat the calls from the last to the first."""
    for call in reversed(calls):
        try:
            gives, how = await call.function(instance, *call.arguments), "gives something else"
        except Exception as error:  # whatever an instance raises that has not seen the start
            gives, how = ConformanceError, f"raises {error.__cause__ or error!r}"
        require(
            gives == call.gave,
            f"{how} for the same state {where}",
            f"{name}.{call.method}",
            fix="keep nothing of an episode on `self`, put it into the state: branches are played in any "
            "order, and by other processes",
        )


def _another(env: Any) -> Any:
    """An instance like this one, or None where it can't be made."""
    makers: list[Callable[[], Any]] = [lambda: copy.deepcopy(env)]
    if isinstance(env, Plugin):
        makers.insert(0, lambda: type(env)(env.config, env.build))
    for make in makers:
        try:
            return make()
        except Exception:  # it holds what can't be copied, or has a constructor of its own
            continue
    return None


async def _played(env: Any, task: Task, team: Players, turns: int, seed: int) -> list[_PlayedCall]:
    """The calls of an episode, in the order of play."""
    rng = generator(seed, f"memory of {task.id}", "check_environment")
    calls: list[_PlayedCall] = []

    async def note(method: str, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        calls.append(_PlayedCall(method, function, arguments, await function(env, *arguments)))

    pending = initial_stage(env, env.reset(task, seed), team)
    while pending is not None:
        state, roles = pending.state, pending.roles
        await note("acting_roles", _acting, state)
        for role in roles:
            await note("observe", _observed, state, role)
        actions = team.actions({role: env.observe(state, role) for role in roles}, rng)
        actions |= {role: unreadable() for role in roles if rng.random() < 0.15}
        ctx = StepContext(task=task, turn=pending.turn, seed=int(rng.integers(2**63)))
        step = await stepped(env, pending, actions, ctx)
        calls.append(_PlayedCall("step", _step, (pending, actions, ctx), mark_of(step)))
        for role in roles if isinstance(env, Diagnoses) else ():
            await note("diagnose", _diagnosis, step.state, role)
        pending = following_stage(env, pending, step, turns, team)
    await note("outcome", _outcome, step.state)
    return calls


async def _acting(env: Any, state: Any) -> Any:
    return env.acting_roles(state)


async def _observed(env: Any, state: Any, role: str) -> str:
    return fingerprint(env.observe(state, role))


async def _step(env: Any, *arguments: Any) -> Any:
    return mark_of(await stepped(env, *arguments))


async def _diagnosis(env: Any, state: Any, role: str) -> Any:
    diagnosis = env.diagnose(state, role)
    return await diagnosis if inspect.isawaitable(diagnosis) else diagnosis


async def _outcome(env: Any, state: Any) -> str:
    return fingerprint(dict(env.outcome(state)))


def mark_of(step: Step) -> tuple[Any, ...]:
    """What is equal for two equal steps: of the state, the scores, the info, and whether the turn is over."""
    scores = sorted((str(place), value) for place, value in step.scores.items())
    return fingerprint(step.state), scores, fingerprint(step.info), step.turn_over
