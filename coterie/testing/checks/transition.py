"""`check_transition`: feedback is sentences, repeats."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.core.errors import PluginError, SystemFault
from coterie.core.protocols.tool import CountsMetrics
from coterie.core.rollout.contracts import check_metrics
from coterie.core.types import HistoryEntry
from coterie.core.types.seeding import generator
from coterie.testing.support.episodes import Act, episode, players
from coterie.testing.support.failure import (
    ConformanceError,
    check_vocabulary,
    guarded,
    require,
    require_kind,
)
from coterie.testing.support.opening import beside, opened, opened_beside, tasks_beside
from coterie.testing.support.promises import promise
from coterie.testing.support.time_limit import in_time
from coterie.testing.support.values import fingerprint


def check_transition(
    transition: Any,
    environment: Any,
    *,
    roles: Sequence[str],
    act: Act,
    order: Sequence[str | Sequence[str]] | None = None,
    role_plugins: Mapping[str, Any] | None = None,
    turns: int = 3,
    episodes: int = 5,
    repeats: bool = True,
    engine: Any = None,
    seed: int = 0,
) -> None:
    """Check a transition mode along episodes of an environment.

    - `tell` is asynchronous and returns a list or tuple of sentences, none of them empty. It may raise
      SystemFault, but not each time. As in a run, it is not called for a role's first decision.
    - `tell` leaves the state and the history unchanged, and a second call gives the same sentences (unless
      `repeats` is False, for an expert that draws).
    - `vocabulary` gives words, `counted` metrics. What its Config holds is opened before and closed after.

    Args:
        roles, act, order, role_plugins, turns: as in `check_environment`.
        episodes: number of episodes to play.
        repeats: whether two calls must agree.
        engine: the `EngineClient` of a chat model with `use_engine`.
        seed: seed of the tasks and of all draws.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(transition, "transition")
    team = players(roles, act, order, role_plugins)

    async def check() -> None:
        async with opened(transition, engine), opened_beside(environment, engine):
            await play()

    async def play() -> None:
        promise("feedback is sentences, and repeats")
        given, tasks = list[bool](), tasks_beside(environment, seed)
        for number in range(episodes):
            rng = generator(seed, f"episode {number}", "check_transition")
            with beside("its environment"):
                played = await episode(environment, tasks[number % len(tasks)], team, turns, rng, unread=0.2)
            histories: dict[str, tuple[HistoryEntry, ...]] = {}
            for stage in played:
                for role in stage.pending.roles:
                    history = histories.get(role, ())
                    if history:  # a run doesn't call `tell` for a role's first decision
                        state = stage.pending.state
                        answer = await _feedback(transition, role, state, history, environment, name, repeats)
                        given.append(answer is not None)
                    histories[role] = (*history, stage.history_entry(role))
        _check_optional(transition, name)
        fix = "start what it asks, or put a stand-in there"
        require(any(given) or not given, "raised SystemFault each time", f"{name}.tell", fix=fix)

    asyncio.run(check())


def _check_optional(transition: Any, name: str) -> None:
    """Require words of `vocabulary` and metrics of `counted`, where the transition has them."""
    promise("its optional members have their types")
    check_vocabulary(transition, name)
    if not isinstance(transition, CountsMetrics):
        return
    where = f"{name}.counted"
    with guarded(where):
        counted = transition.counted()
        try:
            check_metrics(transition, "counted", counted)
        except PluginError as error:
            raise ConformanceError(f"returned {counted!r}", where=where, fix=error.fix) from None


async def _feedback(
    transition: Any,
    role: str,
    state: Any,
    history: Sequence[HistoryEntry],
    environment: Any,
    name: str,
    repeats: bool,
) -> Sequence[str] | None:
    """The sentences; None where a fault of the system keeps them away: the action is missing then."""
    where = f"{name}.tell"
    mark = fingerprint((state, history))
    answers = []
    for _ in range(2 if repeats else 1):
        with guarded(where):
            answer = transition.tell(role, state, history, environment)
            require(inspect.isawaitable(answer), "is not asynchronous", where, fix="`async def tell`")
            try:
                answers.append(await in_time(answer))
            except SystemFault:
                return None
    require(fingerprint((state, history)) == mark, "changed the state or the history", where, fix="copy")
    feedback = answers[0]
    sound = isinstance(feedback, (list, tuple)) and all(
        isinstance(sentence, str) and sentence.strip() for sentence in feedback
    )
    require(sound, f"returned {feedback!r}", where, fix="a list of sentences; an empty one for nothing")
    require(
        list(feedback) == list(answers[-1]),
        f"returned {feedback!r}, then {answers[-1]!r}",
        where,
        fix="check with repeats=False if the transition draws",
    )
    return feedback
