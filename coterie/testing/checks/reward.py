"""`check_reward`: a reward source returns scores of its declared components, and only those."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from coterie.compose.kinds import check_coroutines, check_source_attributes
from coterie.core.protocols import ActionView, EpisodeView, JointView, SiblingsView
from coterie.core.protocols.reward import ShowsFeedback
from coterie.core.types import Score
from coterie.core.types.seeding import generator
from coterie.discovery.members import CountsCalls
from coterie.testing.support.cycles import Paid, Pay, warn_of_source_cycles
from coterie.testing.support.episodes import (
    Act,
    PlayedStage,
    Players,
    episode,
    episode_view,
    players,
    unreadable,
)
from coterie.testing.support.failure import (
    finite,
    guarded,
    require,
    require_components,
    require_kind,
    require_scores,
)
from coterie.testing.support.kept_state import twice
from coterie.testing.support.opening import beside, opened, opened_beside, tasks_beside
from coterie.testing.support.outage import FLOOR, MISSING, Outage, answer_of, check_outage
from coterie.testing.support.promises import promise
from coterie.testing.support.values import fingerprint, unchanged

SCOPES = {
    "action": ActionView,
    "joint": JointView,
    "siblings": SiblingsView,
    "episode": EpisodeView,
    "trajectory": EpisodeView,
}


def check_reward(
    source: Any,
    *,
    environment: Any = None,
    roles: Sequence[str] = (),
    act: Act = (),
    order: Sequence[str | Sequence[str]] | None = None,
    role_plugins: Mapping[str, Any] | None = None,
    views: Sequence[Any] = (),
    turns: int = 3,
    episodes: int = 5,
    repeats: bool = True,
    outage: Outage | None = None,
    repeatable: Sequence[str] = (),
    keeps: Sequence[str] = (),
    engine: Any = None,
    seed: int = 0,
) -> None:
    """Check a reward source on views of its scope, which are given or made by playing an environment.

    - `scope` is action, joint, siblings, episode or trajectory; components are of a known kind; default
      weights are numbers and belong to its components; `policy_fault` is a finite number.
    - `score` is asynchronous and returns {(role that acted or TEAM, its component): finite number or None};
      for scope siblings one such table a branch, for scope trajectory one an action. It may raise
      `PolicyFault` for what the output caused, and `SystemFault` for what it didn't, and nothing else. Some
      of the actions can't be read. At least one view has scores.
    - While its backend fails (`outage`), scores are missing: a number or the floor is refused, unless the
      working system gave the same. At least one score is missing.
    - `open` and `close` are asynchronous and are called, as in a run, also those of a chat model or a sandbox
      that its Config, or the environment's, holds; `concurrency` is 1 or more; `per_role` names its own
      components.
    - `feedback`, where the source has it, returns a text for each score, for a missing one and for the floor.
      Roles read it in time: the scope is action, joint or siblings, and `background` is not set.
    - `score` leaves the view unchanged, and repeats (unless `repeats` is False, for a judge that draws).
    - It warns of an increment (scope action or joint) that a way back to a state of the environment pays each
      time, and of attributes that change whenever the same view is scored; not for sources that call a model.

    Args:
        environment: the environment whose episodes give views; `roles`, `act`, `order`, `role_plugins` and
            `turns` have the meaning that they have in `check_environment`.
        views: further views of the source's scope; they suffice without an environment.
        episodes: number of episodes to play.
        repeats: whether two calls on one view must agree.
        outage: a context manager, or a function that returns one, inside which the source's backend fails,
            such as `mock.patch.object(Judge, "ask", side_effect=ConnectionError)`; entered after the scoring.
        repeatable: increments that an episode may earn again and again, on purpose.
        keeps: attributes that may change while it scores, on purpose.
        seed: seed of the tasks and of all draws.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(source, "reward")
    promise("scope, components and weights are declared")
    _check_declared(source, name)
    team = players(roles, act, order, role_plugins)
    meant = _Meant(repeats, repeatable, keeps)
    asyncio.run(
        _check(source, name, environment, list(views), team, (turns, episodes, seed), meant, outage, engine)
    )


class _Meant(NamedTuple):
    """What a source may do on purpose: see `check_reward`."""

    repeats: bool
    repeatable: Sequence[str]
    keeps: Sequence[str]


async def _check(
    source: Any,
    name: str,
    environment: Any,
    views: list[Any],
    team: Players,
    playing: tuple[int, int, int],
    meant: _Meant,
    outage: Outage | None,
    engine: Any,
) -> None:
    """Make views, and check the scores of all.

    Args:
        playing: turns, episodes, seed.
    """
    async with AsyncExitStack() as stack:
        if environment is not None:
            await stack.enter_async_context(opened_beside(environment, engine))
            views += await _played_views(source.scope, environment, team, *playing)
        require(views, "nothing to score", name, fix="give check_reward an environment, or views")
        await stack.enter_async_context(opened(source, engine))
        answers = await _check_views(source, views, name, meant.repeats)
        if meant.repeats and not (isinstance(source, CountsCalls) and source.calls_per_view):
            for _ in twice(source, meant.keeps, "check_reward"):
                await answer_of(source, views[-1], f"{name}.score")
            if environment is not None:
                await _warn_of_cycles(source, name, environment, team, playing[2], meant.repeatable)
        if outage is not None:
            promise("while its backend fails, scores are missing")
            await check_outage(source, answers, outage, f"{name}.score")


async def _played_views(
    scope: str, environment: Any, team: Players, turns: int, episodes: int, seed: int
) -> list[Any]:
    """The views of a scope along episodes."""
    tasks, views = tasks_beside(environment, seed), list[Any]()
    for number in range(episodes):
        rng = generator(seed, f"episode {number}", "check_reward")
        with beside("its environment"):
            played = await episode(environment, tasks[number % len(tasks)], team, turns, rng, unread=0.2)
            views += _views(scope, played, environment)
    return views


async def _warn_of_cycles(
    source: Any, name: str, environment: Any, team: Players, seed: int, repeatable: Sequence[str]
) -> None:
    if source.scope in ("action", "joint"):
        promise("no gain can be earned again and again")
        pay = _paid_by(source, environment, f"{name}.score")
        await warn_of_source_cycles(source, name, environment, team, seed, repeatable, pay)


def _paid_by(source: Any, environment: Any, where: str) -> Pay:
    """What a source of scope action or joint pays for a stage."""

    async def pay(stage: PlayedStage) -> Paid:
        paid: Paid = {}
        for view in _views(source.scope, [stage], environment):
            answer = await answer_of(source, view, where)
            for place, value in {} if answer in (FLOOR, MISSING) else answer.items():
                number = value.value if isinstance(value, Score) else value
                paid[place] = float(number or 0)
        return paid

    return pay


async def _check_views(source: Any, views: Sequence[Any], name: str, repeats: bool) -> list[tuple[Any, Any]]:
    """Check the scores of views; return each view with its answer."""
    promise("scores are of its components and of the roles that acted, and repeat")
    answers = [(view, await _check_scores(source, view, name, repeats)) for view in views]
    require(
        any(answer is not MISSING for _, answer in answers),
        f"raised SystemFault for each of {len(answers)} views, so nothing was checked",
        f"{name}.score",
        fix="start what it calls, or put a stand-in there; `outage` checks what happens without it",
    )
    require(
        any(answer not in (MISSING, FLOOR) for _, answer in answers),
        f"raised PolicyFault for each of {len(answers)} views, so no score was checked",
        f"{name}.score",
        fix="give views, or an `act`, with answers that it can score",
    )
    require(
        any(_scored(answer) for _, answer in answers),
        f"gave no score for any of {len(answers)} views, so nothing was checked",
        f"{name}.score",
        fix="give views, or an environment and an `act`, that it can score",
    )
    if isinstance(source, ShowsFeedback):
        promise("feedback is a text for every score")
        _check_feedback(source, [answer for _, answer in answers], f"{name}.feedback")
    return answers


def _check_declared(source: Any, name: str) -> None:
    require(source.scope in SCOPES, f"is {source.scope!r}", f"{name}.scope", fix=", ".join(SCOPES))
    with guarded(name):
        require_components(source, name)
    require(source.components, "are none", f"{name}.components", fix="name at least one, with its kind")
    with guarded(name):
        check_source_attributes(source)
        check_coroutines(source, "reward")
    require(
        finite(source.policy_fault), f"is {source.policy_fault!r}", f"{name}.policy_fault", fix="a number"
    )


def _check_feedback(source: Any, answers: Sequence[Any], where: str) -> None:
    """Require a text for each score, for a missing one and for the floor."""
    scores = [("solver", Score(None, "the judge is down")), ("solver", Score(0.0, "floor: it hung"))]
    for answer in answers:
        for table in answer if isinstance(answer, (list, tuple)) else [answer]:
            given = table.items() if isinstance(table, Mapping) else ()
            scores += [(role, at if isinstance(at, Score) else Score(at)) for (role, _), at in given]
    for role, score in scores:
        with guarded(where, "every score is shown: a missing one has no value, and a floor no comment"):
            text = source.feedback(role, score)
        require(isinstance(text, str), f"returned {text!r} for {score}", where, fix="a text, or an empty one")


def _views(scope: str, played: Sequence[PlayedStage], environment: Any) -> list[Any]:
    """The views of an episode in this scope."""
    if scope in ("episode", "trajectory"):
        return [episode_view(played, environment)]
    if scope == "joint":
        return [stage.joint_view() for stage in played]
    views: list[Any] = []
    for stage in played:
        for role, action in stage.actions.items():
            observation = stage.observations[role]
            if scope == "siblings":
                siblings = (action, stage.alternatives[role], unreadable(), action)
                views.append(
                    SiblingsView(
                        task=stage.task,
                        turn=stage.pending.turn,
                        role=role,
                        observation=observation,
                        actions=siblings,
                    )
                )
            else:
                views.append(
                    ActionView(
                        task=stage.task,
                        turn=stage.pending.turn,
                        role=role,
                        observation=observation,
                        messages=({"role": "user", "content": str(observation)},),
                        action=action,
                        state=stage.pending.state,
                    )
                )
    return views


async def _check_scores(source: Any, view: Any, name: str, repeats: bool) -> Any:
    """Check what a source answers to a view, and return it."""
    where = f"{name}.score"
    with unchanged(view, "the view", where):
        answers = [await answer_of(source, view, where) for _ in range(2 if repeats else 1)]
    for answer in answers:
        if answer is FLOOR or answer is MISSING:
            continue
        several = source.scope in ("siblings", "trajectory")
        if several:
            count = len(list(view.actions))
            rows = isinstance(answer, Sequence) and len(answer) == count
            require(
                rows, f"returned {answer!r} for {count} actions", where, fix="a list, one table an action"
            )
        for table in answer if several else [answer]:
            require_scores(table, source, _roles(view), where)
    lost = any(answer is MISSING for answer in answers)
    same = lost or fingerprint(answers[0]) == fingerprint(answers[-1])
    require(
        same,
        f"scored the same view as {answers[0]!r}, then as {answers[-1]!r}",
        where,
        fix="check with repeats=False if the source draws",
    )
    return answers[-1]


def _scored(answer: Any) -> bool:
    """Whether an answer, or one of a list, has a score that is not missing."""
    tables = answer if isinstance(answer, (list, tuple)) else [answer]
    values = [value for table in tables if isinstance(table, Mapping) for value in table.values()]
    return any((value.value if isinstance(value, Score) else value) is not None for value in values)


def _roles(view: Any) -> tuple[str, ...]:
    if isinstance(view, (ActionView, SiblingsView)):
        return (view.role,)
    if isinstance(view, JointView):
        return tuple(view.actions)
    return tuple(sorted({role for node, _ in view.path for role in node.decisions}))
