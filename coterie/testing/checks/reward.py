"""`check_reward`: a source scores what it says, and nothing else."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.core.errors import PolicyFault
from coterie.core.protocols import ActionView, EpisodeView, JointView, SiblingsView
from coterie.core.types.seeding import generator
from coterie.testing.support.episodes import Act, episode, episode_view, players, unreadable
from coterie.testing.support.failure import (
    ConformanceError,
    finite,
    guarded,
    require,
    require_components,
    require_kind,
    require_scores,
)
from coterie.testing.support.values import fingerprint

SCOPES = {"action": ActionView, "joint": JointView, "siblings": SiblingsView, "episode": EpisodeView}


def check_reward(
    source: Any,
    *,
    environment: Any = None,
    roles: Sequence[str] = (),
    act: Act = (),
    order: Sequence[str | Sequence[str]] | None = None,
    seats: Mapping[str, Any] | None = None,
    views: Sequence[Any] = (),
    turns: int = 3,
    episodes: int = 5,
    repeats: bool = True,
    seed: int = 0,
) -> None:
    """Check a reward source on views of its scope, given or made by playing an environment.

    - `scope` is action, joint, siblings or episode; components are of a known kind; default weights are
      numbers and of its components; `policy_fault` is a finite number.
    - `score` is asynchronous and returns {(role that acted or TEAM, its component): finite number or None};
      for scope siblings one such table a branch. It may raise `PolicyFault`, nothing else: whatever it
      can't score with the world intact is the output's doing. Among the actions are some that can't be read.
    - The view stays as it was, and asking twice gives the same (unless `repeats` is False: a judge that
      draws).

    Args:
        environment: what is played for views, with `roles`, `act`, `order`, `seats` and `turns` as
            `check_environment` takes them.
        views: views of the source's scope, besides or instead.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(source, "reward")
    require(source.scope in SCOPES, f"is {source.scope!r}", where=f"{name}.scope", fix=", ".join(SCOPES))
    with guarded(name):
        require_components(source, name)
    require(source.components, "are none", where=f"{name}.components")
    require(
        finite(source.policy_fault),
        f"is {source.policy_fault!r}",
        where=f"{name}.policy_fault",
        fix="a number",
    )

    async def go() -> None:
        asked = list(views)
        if environment is not None:
            team = players(roles, act, order, seats)
            tasks = environment.tasks("train", seed)
            for number in range(episodes):
                rng = generator(seed, f"episode {number}", "check_reward")
                played = await episode(environment, tasks[number % len(tasks)], team, turns, rng, unread=0.2)
                asked += _views(source.scope, played, environment)
        require(asked, "nothing to score", where=name, fix="give check_reward an environment, or views")
        for view in asked:
            await _scores(source, view, name, repeats)

    asyncio.run(go())


def _views(scope: str, played: Sequence[Any], environment: Any) -> list[Any]:
    """An episode as a source of this scope sees it."""
    if scope == "episode":
        return [episode_view(played, environment)]
    if scope == "joint":
        return [one.joint_view() for one in played]
    found: list[Any] = []
    for one in played:
        for role, action in one.actions.items():
            seen = one.seen[role]
            if scope == "siblings":
                siblings = (action, one.others[role], unreadable(), action)
                found.append(
                    SiblingsView(
                        task=one.task, turn=one.now.turn, role=role, observation=seen, actions=siblings
                    )
                )
            else:
                found.append(
                    ActionView(
                        task=one.task,
                        turn=one.now.turn,
                        role=role,
                        observation=seen,
                        messages=({"role": "user", "content": str(seen)},),
                        action=action,
                        state=one.now.state,
                    )
                )
    return found


async def _scores(source: Any, view: Any, name: str, repeats: bool) -> None:
    where = f"{name}.score"
    mark = fingerprint(view)
    answers = [await _ask(source, view, where) for _ in range(2 if repeats else 1)]
    require(fingerprint(view) == mark, "changed the view", where=where, fix="copy what it changes")
    for answer in answers:
        if answer is None:
            continue
        if isinstance(view, SiblingsView):
            count = len(view.actions)
            rows = isinstance(answer, Sequence) and len(answer) == count
            require(
                rows,
                f"returned {answer!r} for {count} branches",
                where=where,
                fix="a list, one table a branch",
            )
        for table in answer if isinstance(view, SiblingsView) else [answer]:
            require_scores(table, source, _roles(view), where)
    same = fingerprint(answers[0]) == fingerprint(answers[-1])
    require(
        same,
        f"scored the same view as {answers[0]!r}, then as {answers[-1]!r}",
        where=where,
        fix="say repeats=False if it draws",
    )


async def _ask(source: Any, view: Any, where: str) -> Any:
    """The table; None where the output is to blame."""
    try:
        with guarded(where, "coterie.PolicyFault for what the output caused"):
            answer = source.score(view)
            if not inspect.isawaitable(answer):
                raise ConformanceError(
                    "is not asynchronous", where=where, fix="write it as `async def score`"
                )
            return await answer
    except ConformanceError as error:
        if isinstance(error.__cause__, PolicyFault):
            return None
        raise


def _roles(view: Any) -> tuple[str, ...]:
    if isinstance(view, (ActionView, SiblingsView)):
        return (view.role,)
    if isinstance(view, JointView):
        return tuple(view.actions)
    return tuple(sorted({role for node, _ in view.path for role in node.decisions}))
