"""Playing an environment without an engine: who is to act, what they say, and what comes next."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.core.errors import PolicyFault
from coterie.core.protocols import EpisodeView, JointView, StepContext
from coterie.core.types import (
    Action,
    Decision,
    Fault,
    HistoryEntry,
    JointAction,
    Key,
    Node,
    Step,
    Task,
    as_tuple,
)
from coterie.testing.support.failure import ConformanceError, guarded, require

Act = Callable[[str, Any, np.random.Generator], Any] | Sequence[Any]
"""(role, observation, generator) -> text, or what a parser would make of it; or a list to draw from."""


@dataclass(frozen=True, slots=True)
class Players:
    """Who plays: the order of a turn, what each says, and the seats that read it."""

    order: tuple[tuple[str, ...], ...]
    act: Act
    seats: Mapping[str, Any] = field(default_factory=dict)

    def actions(self, seen: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Action]:
        """One action of everybody who is to act, given what each sees."""
        return {role: self._action(role, observation, rng) for role, observation in seen.items()}

    def _action(self, role: str, observation: Any, rng: np.random.Generator) -> Action:
        said = (
            self.act(role, observation, rng)
            if callable(self.act)
            else self.act[int(rng.integers(len(self.act)))]
        )
        if isinstance(said, Action):
            return said
        if isinstance(said, str) and role in self.seats:
            try:
                return Action(calls=(), text=said, parsed=self.seats[role].parse(said, observation))
            except PolicyFault as fault:
                return unreadable(said, str(fault))
        return Action(calls=(), text=str(said), parsed=said)


def players(
    roles: Sequence[str], act: Act, order: Any = None, seats: Mapping[str, Any] | None = None
) -> Players:
    """Players in this order; by default one stage a role."""
    return Players(as_tuple(order or list(roles)), act, seats or {})


def unreadable(text: str = "?", reason: str = "unreadable") -> Action:
    """What a role hands over where its parser could make nothing of the text."""
    return Action(calls=(), text=text, fault=Fault(kind="policy", reason=reason))


@dataclass(frozen=True, slots=True)
class Moment:
    """Somebody is to act."""

    state: Any
    turn: int
    stage: int
    roles: tuple[str, ...]


def moment(env: Any, state: Any, turn: int, stage: int, team: Players) -> Moment | None:
    """Who acts in this state; None where the game is over."""
    where = f"{type(env).__name__}.stage"
    with guarded(where):
        own = env.acting_roles(state)
    named = own is None or (isinstance(own, tuple) and all(isinstance(role, str) for role in own))
    require(
        named, f"returned {own!r}", where=where, fix="a tuple of roles, () where the game is over, or None"
    )
    if own is None:
        require(
            stage < len(team.order),
            "returns None in a stage that the team's order doesn't have",
            where=where,
            fix="answer None for all states of a turn, or name the roles in all of them",
        )
    acting = team.order[stage] if own is None else own
    known = {role for names in team.order for role in names}
    strange = [role for role in acting if role not in known]
    require(not strange, f"named '{', '.join(strange)}', who is not in the team", where=where)
    require(len(set(acting)) == len(acting), f"named a role twice: {acting!r}", where=where)
    return Moment(state, turn, stage, acting) if acting else None


def following(env: Any, now: Moment, step: Step, turns: int, team: Players) -> Moment | None:
    """What comes after a step, as the default sampler has it; None where the episode ends."""
    with guarded(f"{type(env).__name__}.stage"):
        own = env.acting_roles(step.state)
    over = step.turn_over or (own is None and now.stage + 1 >= len(team.order))
    turn, stage = (now.turn + 1, 0) if over else (now.turn, now.stage + 1)
    if own == () or turn >= turns:
        return None
    return moment(env, step.state, turn, stage, team)


async def stepped(env: Any, now: Moment, actions: Mapping[str, Action], ctx: StepContext) -> Step:
    """One step.

    Raises:
        ConformanceError: it raised, is not asynchronous, or returned no Step.
    """
    where = f"{type(env).__name__}.step"
    faulty = [role for role, action in actions.items() if action.fault is not None]
    fix = "the action can't be read (parsed is None, fault.kind 'policy'): score it" if faulty else ""
    with guarded(where, fix):
        answer = env.step(now.state, actions, ctx)
        if not inspect.isawaitable(answer):
            raise ConformanceError("is not asynchronous", where=where, fix="write it as `async def step`")
        step = await answer
    require(isinstance(step, Step), f"returned a {type(step).__name__}", where=where, fix="coterie.Step")
    return step


@dataclass(frozen=True, slots=True)
class PlayedStage:
    """One stage that was played."""

    task: Task
    now: Moment
    seen: Mapping[str, Any]
    actions: Mapping[str, Action]
    step: Step
    over: bool
    others: Mapping[str, Action]
    """What each might have said instead."""

    def joint_view(self) -> JointView:
        return JointView(
            task=self.task,
            turn=self.now.turn,
            actions=self.actions,
            state=self.now.state,
            after=self.step.state,
            emitted=self.step.scores,
            info=self.step.info,
            terminated=self.over,
        )

    def past(self, role: str) -> HistoryEntry:
        """What the role remembers of it."""
        return HistoryEntry(
            turn=self.now.turn,
            observation=self.seen[role],
            messages=({"role": "user", "content": "?"},),
            action=self.actions[role],
            info=self.step.info,
        )


async def episode(
    env: Any, task: Task, team: Players, turns: int, rng: np.random.Generator, unread: float = 0.0
) -> list[PlayedStage]:
    """One episode, unchecked; with probability `unread` an action can't be read."""
    found: list[PlayedStage] = []
    now = moment(env, env.reset(task, 0), 0, 0, team)
    while now is not None:
        seen = {role: env.observe(now.state, role) for role in now.roles}
        actions, others = team.actions(seen, rng), team.actions(seen, rng)
        for role in now.roles:
            if rng.random() < unread:
                actions[role] = unreadable()
        ctx = StepContext(task=task, turn=now.turn, seed=int(rng.integers(2**63)))
        step = await stepped(env, now, actions, ctx)
        after = following(env, now, step, turns, team)
        found.append(PlayedStage(task, now, seen, actions, step, after is None, others))
        now = after
    return found


def episode_view(played: Sequence[PlayedStage], env: Any) -> EpisodeView:
    """An episode as a source of scope `episode` sees it."""
    path = []
    key = Key(played[0].task.id)
    for one in played:
        decisions = {
            role: Decision(
                role=role,
                policy="policy",
                observation=one.seen[role],
                messages=(),
                prompt_ids=(),
                prompt_sha256="",
                branches=(action,),
            )
            for role, action in one.actions.items()
        }
        joint = JointAction(
            branches=dict.fromkeys(one.actions, 0),
            state_digest="",
            terminated=one.over,
            info=one.step.info,
            outcome=env.outcome(one.step.state) if one.over else None,
        )
        node = Node(
            key=key,
            turn=one.now.turn,
            stage=one.now.stage,
            decisions=decisions,
            joints=(joint,),
            expanded=(0,),
        )
        path.append((node, 0))
        key = key.child(0)
    return EpisodeView(task=played[0].task, path=tuple(path), leaf=path[-1][0].joints[0])
