"""`check_transition`: what roles are told between turns."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.core.types import HistoryEntry
from coterie.core.types.seeding import generator
from coterie.testing.support.episodes import Act, episode, players
from coterie.testing.support.failure import guarded, require, require_kind
from coterie.testing.support.values import fingerprint


def check_transition(
    transition: Any,
    environment: Any,
    *,
    roles: Sequence[str],
    act: Act,
    order: Sequence[str | Sequence[str]] | None = None,
    seats: Mapping[str, Any] | None = None,
    turns: int = 3,
    episodes: int = 5,
    repeats: bool = True,
    seed: int = 0,
) -> None:
    """Check a transition mode along episodes of an environment.

    - `tell` is asynchronous and returns a list or tuple of sentences, none of them empty.
    - Nothing is told on a role's first decision.
    - The state, the history and the environment's answers stay as they were, and asking twice tells the same
      (unless `repeats` is False: an expert that draws).

    Args:
        roles, act, order, seats, turns: as `check_environment` takes them.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(transition, "transition")
    team = players(roles, act, order, seats)

    async def go() -> None:
        tasks = environment.tasks("train", seed)
        for number in range(episodes):
            rng = generator(seed, f"episode {number}", "check_transition")
            played = await episode(environment, tasks[number % len(tasks)], team, turns, rng, unread=0.2)
            history: dict[str, tuple[HistoryEntry, ...]] = {}
            for one in played:
                for role in one.now.roles:
                    past = history.get(role, ())
                    told = await _tell(transition, role, one.now.state, past, environment, name, repeats)
                    first = f"told '{role}' {told!r} before it ever acted"
                    require(
                        past or not told, first, where=f"{name}.tell", fix="return () where history is empty"
                    )
                    history[role] = (*past, one.past(role))

    asyncio.run(go())


async def _tell(
    transition: Any,
    role: str,
    state: Any,
    past: Sequence[HistoryEntry],
    environment: Any,
    name: str,
    repeats: bool,
) -> Sequence[str]:
    where = f"{name}.tell"
    mark = fingerprint((state, past))
    found = []
    for _ in range(2 if repeats else 1):
        with guarded(where):
            answer = transition.tell(role, state, past, environment)
            require(inspect.isawaitable(answer), "is not asynchronous", where=where, fix="`async def tell`")
            found.append(await answer)
    require(fingerprint((state, past)) == mark, "changed the state or the history", where=where)
    told = found[0]
    sentences = isinstance(told, (list, tuple)) and all(isinstance(one, str) and one.strip() for one in told)
    require(sentences, f"returned {told!r}", where=where, fix="a list of sentences; an empty one for nothing")
    require(list(told) == list(found[-1]), f"told {told!r}, then {found[-1]!r}", where=where)
    return told
