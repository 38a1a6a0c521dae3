"""States that come back with a gain: a reward that can be earned again and again, if it is summed."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from coterie.core.errors import UserError, did_you_mean
from coterie.core.protocols import StepContext
from coterie.core.types import TEAM, Action, Task
from coterie.core.types.seeding import generator
from coterie.discovery.members import HasNotSummable
from coterie.testing.support.episodes import (
    PendingStage,
    PlayedStage,
    Players,
    following_stage,
    initial_stage,
    stepped,
)
from coterie.testing.support.failure import ConformanceError, warn
from coterie.testing.support.promises import promise
from coterie.testing.support.values import fingerprint

_TASKS, _STEPS, _ROUNDS = 4, 80, 20
"""Tasks that are explored; steps in each; rounds of a cycle that must pay."""
_SCORED = 40
"""Most steps of ways back that a reward source scores in a task."""
_TURNS = 10**6
_TINY = 1e-9

Paid = dict[tuple[str, str], float]
Pay = Callable[[PlayedStage], Awaitable[Paid]]
"""What a step pays, by (role or TEAM, component)."""


class _Edge(NamedTuple):
    """A step between two states, with what it paid."""

    source: str
    target: str
    stage: PlayedStage
    paid: Paid


@dataclass(slots=True)
class _Explored:
    """What was seen of one task's states."""

    edges: list[_Edge] = field(default_factory=list)
    ends: bool = False
    """Whether the game ended an episode by itself."""


async def check_cycles(
    env: Any, name: str, tasks: Sequence[Task], team: Players, seed: int, repeatable: Sequence[str]
) -> None:
    """Require that no way back to a state pays, in increments that may be summed.

    Random actions explore a few tasks. A state is the same where its roles observe the same. A way round
    that pays is walked twenty more times, with other seeds; it is told only where each round leads back and
    pays. A game that never ends an episode by itself, such as a repeated matrix game, is left out: there is
    no end that a player could put off.

    Args:
        repeatable: components that may pay so on purpose.

    Raises:
        ConformanceError: a component that can be earned again and again.
        UserError: `repeatable` names no component.
    """
    promise("no gain can be earned again and again")
    weights = summable(env, name, repeatable)
    if not any(weights.values()):
        return

    async def emitted(stage: PlayedStage) -> Paid:
        return {at: float(value or 0) for at, value in stage.step.scores.items()}

    cycle = await _paying_way_back(env, tasks, team, seed, weights, emitted, of_source=False)
    if cycle is not None:
        raise ConformanceError(
            cycle.what,
            where=f"{name}.components",
            fix=f"declare '{cycle.component}' a potential (the value of the state; returns take "
            f"differences), or list it: not_summable = ('{cycle.component}',); where it is meant so: "
            f"check_environment(..., repeatable=['{cycle.component}'])",
        )


async def warn_of_source_cycles(
    source: Any,
    name: str,
    env: Any,
    team: Players,
    seed: int,
    repeatable: Sequence[str],
    score: Callable[[PlayedStage], Awaitable[Paid]],
) -> None:
    """Warn where a way back to a state pays by a reward source, as `check_cycles` does for an environment.

    It is no error: a source scores one step, and whether scores are summed is the algorithm's choice.

    Args:
        score: what the source pays for a step.

    Raises:
        UserError: `repeatable` names no component.
    """
    weights = summable(source, name, repeatable)
    if not any(weights.values()):
        return
    cycle = await _paying_way_back(env, env.tasks("train", seed), team, seed, weights, score, of_source=True)
    if cycle is not None:
        warn(
            cycle.what,
            f"{name}.score",
            fix="score what a step adds, declare the component a potential, or use an algorithm that doesn't "
            f"sum over turns; where it is meant so: check_reward(..., repeatable=['{cycle.component}'])",
        )


def summable(plugin: Any, name: str, repeatable: Sequence[str]) -> dict[str, float]:
    """The weights of the increments that a return may sum over turns, but for those of `repeatable`.

    Raises:
        UserError: `repeatable` names no component.
    """
    for component in repeatable:
        if component not in plugin.components:
            fix = did_you_mean(component, plugin.components)
            raise UserError(f"`repeatable` names '{component}', which is no component of {name}", fix=fix)
    declared = plugin.not_summable if isinstance(plugin, HasNotSummable) else ()
    return {
        component: float(plugin.weights.get(component, 1.0))
        for component, kind in plugin.components.items()
        if kind == "increment" and component not in declared and component not in repeatable
    }


class _Found(NamedTuple):
    """A component that can be earned again and again, and the sentence about it."""

    component: str
    what: str


async def _paying_way_back(
    env: Any,
    tasks: Sequence[Task],
    team: Players,
    seed: int,
    weights: Mapping[str, float],
    pay: Pay,
    *,
    of_source: bool,
) -> _Found | None:
    """A way back that pays each time, in a game that ends episodes by itself.

    Args:
        of_source: a source pays, so that only steps of ways back are scored: a score may be dear.
    """
    count = min(_TASKS, len(tasks))
    explored = [await _explore(env, tasks[index], team, seed) for index in range(count)]
    if not any(seen.ends for seen in explored):
        return None
    for index, seen in enumerate(explored):
        edges = _on_ways_back(seen.edges)[:_SCORED] if of_source else seen.edges
        edges = [edge._replace(paid=await pay(edge.stage)) for edge in edges]
        for role in sorted({role for edge in edges for role in edge.stage.pending.roles}):
            cycle = _paying_cycle(edges, role, weights)
            if cycle and await _pays_again(env, tasks[index], team, cycle, role, weights, seed, pay):
                return _found(tasks[index], cycle, role, weights)
    return None


def _on_ways_back(edges: Sequence[_Edge]) -> list[_Edge]:
    """The steps from which the place that they began in can be reached again."""
    onward: dict[str, set[str]] = {}
    for edge in edges:
        onward.setdefault(edge.source, set()).add(edge.target)

    def reached(place: str) -> set[str]:
        known, queue = {place}, [place]
        while queue:
            new = onward.get(queue.pop(), set()) - known
            known |= new
            queue += new
        return known

    return [edge for edge in edges if edge.source in reached(edge.target)]


def _found(task: Task, cycle: Sequence[_Edge], role: str, weights: Mapping[str, float]) -> _Found:
    gains = {component: _gain(cycle, role, {component: weight}) for component, weight in weights.items()}
    component = max(gains, key=lambda name: gains[name])
    texts = " > ".join(repr(action.text[:40]) for edge in cycle for action in edge.stage.actions.values())
    return _Found(
        component,
        f"'{component}' can be earned again and again: in task '{task.id}' the actions {texts} lead back to "
        f"where they began and pay {_gain(cycle, role, weights):.3g} each time, so where a return sums over "
        "turns, going round beats ending the game",
    )


async def _explore(env: Any, task: Task, team: Players, seed: int) -> _Explored:
    """What random actions reach, each from a random one of the known states."""
    rng = generator(seed, f"cycles of {task.id}", "check_environment")
    first = initial_stage(env, env.reset(task, seed), team)
    seen, queue, known, steps = _Explored(), [(first, _place(env, first))], {_place(env, first)}, 0
    while queue and steps < _STEPS:
        pending, before = queue.pop(int(rng.integers(len(queue))))
        if pending is None:
            break
        queue.append((pending, before))
        steps += 1
        observations = {role: env.observe(pending.state, role) for role in pending.roles}
        stage, after = await _played(env, task, team, pending, team.actions(observations, rng), rng)
        if after is None:
            seen.ends = True
            continue
        place = _place(env, after)
        seen.edges.append(_Edge(before, place, stage, {}))
        if place not in known:
            known.add(place)
            queue.append((after, place))
    return seen


async def _played(
    env: Any,
    task: Task,
    team: Players,
    pending: PendingStage,
    actions: Mapping[str, Action],
    rng: np.random.Generator,
) -> tuple[PlayedStage, PendingStage | None]:
    """A stage, and the next one; None where the game ended."""
    ctx = StepContext(task=task, turn=pending.turn, seed=int(rng.integers(2**63)))
    observations = {role: env.observe(pending.state, role) for role in pending.roles}
    step = await stepped(env, pending, actions, ctx)
    after = following_stage(env, pending, step, _TURNS, team)
    return PlayedStage(task, pending, observations, actions, step, after is None, actions), after


def _place(env: Any, pending: PendingStage | None) -> str:
    """What is equal where a state comes back: what its roles observe, but for the count of turns."""
    if pending is None:
        return ""
    observed = [(role, _without_turns(env.observe(pending.state, role))) for role in pending.roles]
    return f"{fingerprint(observed)} {pending.stage}"


def _without_turns(observation: Any) -> Any:
    """An observation without its numbers of turns."""
    if dataclasses.is_dataclass(observation) and not isinstance(observation, type):
        fields = dataclasses.fields(observation)
        observation = {field.name: getattr(observation, field.name) for field in fields}
    if not isinstance(observation, Mapping):
        return observation
    return {
        name: value
        for name, value in observation.items()
        if not ("turn" in str(name) and isinstance(value, int))
    }


def _gain(edges: Iterable[_Edge], role: str, weights: Mapping[str, float]) -> float:
    """What a role gets on the edges: the team's components and its own, weighted."""
    return sum(
        weights.get(component, 0.0) * value
        for edge in edges
        for (owner, component), value in edge.paid.items()
        if owner in (TEAM, role)
    )


def _paying_cycle(edges: Sequence[_Edge], role: str, weights: Mapping[str, float]) -> list[_Edge]:
    """A cycle whose gain is positive (Bellman and Ford's algorithm), or none."""
    best = dict.fromkeys({place for edge in edges for place in (edge.source, edge.target)}, 0.0)
    into: dict[str, _Edge] = {}
    place = ""
    for _ in best:
        place = ""
        for edge in edges:
            value = best[edge.source] + _gain([edge], role, weights)
            if value > best[edge.target] + _TINY:
                best[edge.target], into[edge.target], place = value, edge, edge.target
    if not place:
        return []
    for _ in best:  # from anywhere behind the cycle into it
        place = into[place].source
    cycle = [into[place]]
    while cycle[-1].source != place:
        cycle.append(into[cycle[-1].source])
    return cycle[::-1]


async def _pays_again(
    env: Any,
    task: Task,
    team: Players,
    cycle: Sequence[_Edge],
    role: str,
    weights: Mapping[str, float],
    seed: int,
    pay: Pay,
) -> bool:
    """Whether each of a few more rounds, with other seeds and in later turns, leads back and pays."""
    rng = generator(seed, f"rounds of {task.id}", "check_environment")
    pending: PendingStage | None = cycle[0].stage.pending
    for _ in range(_ROUNDS):
        round_: list[_Edge] = []
        for edge in cycle:
            if pending is None or _place(env, pending) != edge.source:
                return False
            stage, pending = await _played(env, task, team, pending, edge.stage.actions, rng)
            round_.append(edge._replace(paid=await pay(stage)))
        leads_back = pending is not None and _place(env, pending) == cycle[0].source
        if not leads_back or _gain(round_, role, weights) <= _TINY:
            return False
    return True
