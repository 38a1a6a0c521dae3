"""States that come back with a gain: a reward that can be earned again and again, if it is summed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from coterie.core.errors import UserError, did_you_mean
from coterie.core.protocols import StepContext
from coterie.core.protocols.environment import HasNotSummable
from coterie.core.types import TEAM, Action, Task
from coterie.core.types.seeding import generator
from coterie.testing.support.episodes import PendingStage, Players, following_stage, initial_stage, stepped
from coterie.testing.support.failure import require
from coterie.testing.support.promises import promise
from coterie.testing.support.values import fingerprint

_TASKS, _STEPS, _ROUNDS = 4, 80, 20
"""Tasks that are explored; steps in each; rounds of a cycle that must pay."""
_TURNS = 10**6
_TINY = 1e-9


class _Edge(NamedTuple):
    """A step between two states: the state and stage it starts in, its actions, and what it paid."""

    source: str
    target: str
    pending: PendingStage
    actions: Mapping[str, Action]
    paid: dict[tuple[str, str], float]


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
    for component in repeatable:
        if component not in env.components:
            fix = did_you_mean(component, env.components)
            raise UserError(f"`repeatable` names '{component}', which is no component of {name}", fix=fix)
    declared = env.not_summable if isinstance(env, HasNotSummable) else ()
    weights = {
        component: float(env.weights.get(component, 1.0))
        for component, kind in env.components.items()
        if kind == "increment" and component not in declared and component not in repeatable
    }
    if not any(weights.values()):
        return
    explored = [await _explore(env, task, team, seed) for task in tasks[:_TASKS]]
    if not any(seen.ends for seen in explored):
        return
    for task, seen in zip(tasks, explored, strict=False):
        for role in sorted({role for edge in seen.edges for role in edge.pending.roles}):
            cycle = _paying_cycle(seen.edges, role, weights)
            if cycle and await _pays_again(env, task, team, cycle, role, weights, seed):
                _tell(name, task, cycle, role, weights)


def _tell(name: str, task: Task, cycle: Sequence[_Edge], role: str, weights: Mapping[str, float]) -> None:
    gains = {component: _gain(cycle, role, {component: weight}) for component, weight in weights.items()}
    component = max(gains, key=lambda name: gains[name])
    texts = " > ".join(repr(action.text[:40]) for edge in cycle for action in edge.actions.values())
    require(
        False,
        f"'{component}' can be earned again and again: in task '{task.id}' the actions {texts} lead back to "
        f"where they began and pay {_gain(cycle, role, weights):.3g} each time, so where a return sums over "
        "turns, going round beats ending the game",
        where=f"{name}.components",
        fix=f"declare '{component}' a potential (the value of the state; returns take differences), or list "
        f"it: not_summable = ('{component}',); where it is meant so: check_environment(..., "
        f"repeatable=['{component}'])",
    )


async def _explore(env: Any, task: Task, team: Players, seed: int) -> _Explored:
    """What random actions reach, each from a random one of the known states."""
    rng = generator(seed, f"cycles of {task.id}", "check_environment")
    first = initial_stage(env, env.reset(task, seed), team)
    seen, queue, known, steps = _Explored(), [first], {_place(env, first)}, 0
    while queue and steps < _STEPS:
        pending = queue.pop(int(rng.integers(len(queue))))
        if pending is None:
            break
        queue.append(pending)
        steps += 1
        actions = team.actions({role: env.observe(pending.state, role) for role in pending.roles}, rng)
        ctx = StepContext(task=task, turn=pending.turn, seed=int(rng.integers(2**63)))
        step = await stepped(env, pending, actions, ctx)
        after = following_stage(env, pending, step, _TURNS, team)
        if after is None:
            seen.ends = True
            continue
        place, paid = _place(env, after), {at: float(value or 0) for at, value in step.scores.items()}
        seen.edges.append(_Edge(_place(env, pending), place, pending, actions, paid))
        if place not in known:
            known.add(place)
            queue.append(after)
    return seen


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
) -> bool:
    """Whether each of a few more rounds, with other seeds and in later turns, leads back and pays."""
    rng = generator(seed, f"rounds of {task.id}", "check_environment")
    pending: PendingStage | None = cycle[0].pending
    for _ in range(_ROUNDS):
        round_: list[_Edge] = []
        for edge in cycle:
            if pending is None or _place(env, pending) != edge.source:
                return False
            ctx = StepContext(task=task, turn=pending.turn, seed=int(rng.integers(2**63)))
            step = await stepped(env, pending, edge.actions, ctx)
            paid = {at: float(value or 0) for at, value in step.scores.items()}
            round_.append(edge._replace(paid=paid))
            pending = following_stage(env, pending, step, _TURNS, team)
        leads_back = pending is not None and _place(env, pending) == cycle[0].source
        if not leads_back or _gain(round_, role, weights) <= _TINY:
            return False
    return True
