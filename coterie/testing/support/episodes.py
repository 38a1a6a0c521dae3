"""Episodes of an environment without an engine: the acting roles, their actions, and the next stage."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.core.errors import PluginError, PolicyFault, UserError, did_you_mean, type_text
from coterie.core.protocols import EpisodeView, JointView, StepContext
from coterie.core.rollout.turns import Stage, first_stage, next_stage
from coterie.core.storage.jsonl import to_json
from coterie.core.types import (
    MAX_STAGES,
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
from coterie.testing.support.failure import ConformanceError, guarded, require, require_scores
from coterie.testing.support.opening import beside
from coterie.testing.support.time_limit import in_time

Act = Callable[[str, Any, np.random.Generator], Any] | Sequence[Any]
"""(role, observation, generator) -> a text, or a parser's result; or a list to draw from."""


@dataclass(frozen=True, slots=True)
class Players:
    """A team without policies: the order of a turn, the source of actions, and the roles that parse them."""

    order: tuple[tuple[str, ...], ...]
    act: Act
    role_plugins: Mapping[str, Any] = field(default_factory=dict)
    max_stages: int = MAX_STAGES
    """Most stages of one turn."""

    def actions(self, observations: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Action]:
        """One action of each role, given its observation."""
        return {role: self._action(role, observation, rng) for role, observation in observations.items()}

    def _action(self, role: str, observation: Any, rng: np.random.Generator) -> Action:
        answer = (
            self.act(role, observation, rng)
            if callable(self.act)
            else self.act[int(rng.integers(len(self.act)))]
        )
        if isinstance(answer, Action):
            return answer
        if isinstance(answer, str) and role in self.role_plugins:
            reader = self.role_plugins[role]
            fix = "raise coterie.PolicyFault for a text that it can't read"
            with beside(f"the role '{role}' that reads the answers"):
                with guarded(f"{type(reader).__name__}.parse", fix):
                    try:
                        parsed = reader.parse(answer, observation)
                    except PolicyFault as fault:
                        return unreadable(answer, str(fault))
            return Action(calls=(), text=answer, parsed=parsed)
        return Action(calls=(), text=str(answer), parsed=answer)


def players(
    roles: Sequence[str],
    act: Act,
    order: Any = None,
    role_plugins: Mapping[str, Any] | None = None,
    max_stages: int = MAX_STAGES,
) -> Players:
    """Players in this order; by default each role is a stage of its own.

    Raises:
        UserError: a text, or a table, is given in place of a list.
    """
    for name, given in (("roles", roles), ("act", act), ("order", order)):
        if isinstance(given, (str, Mapping)):
            raise UserError(f"`{name}` is {given!r:.200}", fix=f"a list: {name}=[...]")
    return Players(as_tuple(order or list(roles)), act, role_plugins or {}, max_stages)


def unreadable(text: str = "?", reason: str = "unreadable") -> Action:
    """The action of a role whose parser can't read the text."""
    return Action(calls=(), text=text, fault=Fault(kind="policy", reason=reason))


@dataclass(frozen=True, slots=True)
class PendingStage:
    """A stage that is about to be played."""

    state: Any
    turn: int
    stage: int
    """Index of the stage in the turn."""
    roles: tuple[str, ...]
    """Roles that act at once."""


def check_named(env: Any, state: Any, team: Players) -> None:
    """Require of `acting_roles` what a run requires of it."""
    where = f"{type(env).__name__}.acting_roles"
    with guarded(where):
        named = env.acting_roles(state)
    sound = named is None or (isinstance(named, tuple) and all(isinstance(role, str) for role in named))
    require(sound, f"returned {named!r}", where, fix="a tuple of roles, () where the game is over, or None")
    known = {role for roles in team.order for role in roles}
    unknown = [role for role in named or () if role not in known]
    fix = f"name roles of the team: {did_you_mean(unknown[0], known)}" if unknown else ""
    require(not unknown, f"named '{', '.join(unknown)}', which is not in the team", where, fix=fix)
    twice = len(set(named or ())) < len(named or ())
    require(not twice, f"named a role twice: {named!r}", where, fix="name each role once")


def initial_stage(env: Any, state: Any, team: Players) -> PendingStage | None:
    """The stage to play in an initial state; None where the game is over."""
    check_named(env, state, team)
    stage = first_stage(env, team.order, state)
    return None if stage is None else PendingStage(state, *stage)


def following_stage(
    env: Any, pending: PendingStage, step: Step, turns: int, team: Players
) -> PendingStage | None:
    """The stage after a step; None where the episode ends.

    Raises:
        ConformanceError: a turn doesn't end, as in a run.
    """
    check_named(env, step.state, team)
    before = Stage(pending.turn, pending.stage, pending.roles)
    try:
        stage, _ = next_stage(env, team.order, turns, before, step, team.max_stages)
    except PluginError as error:
        where = f"{type(env).__name__}.acting_roles"
        raise ConformanceError(f"doesn't end a turn: {error.what}", where=where, fix=error.fix) from None
    return None if stage is None else PendingStage(step.state, *stage)


async def stepped(env: Any, pending: PendingStage, actions: Mapping[str, Action], ctx: StepContext) -> Step:
    """One step.

    Raises:
        ConformanceError: it raised, is not asynchronous, or returned no Step.
    """
    where = f"{type(env).__name__}.step"
    faulty = [role for role, action in actions.items() if action.fault is not None]
    fix = "an action of this step can't be read (parsed is None, fault.kind 'policy'): it is scored too"
    fix = fix if faulty else ""
    with guarded(where, fix):
        answer = env.step(pending.state, actions, ctx)
        if not inspect.isawaitable(answer):
            raise ConformanceError("is not asynchronous", where=where, fix="write it as `async def step`")
        try:
            step = await in_time(answer)
        except PolicyFault:
            if faulty:
                raise
            return Step(state=pending.state)  # in a run the episode would end here, with floors
    require(isinstance(step, Step), f"returned {type_text(step)}", where, fix="coterie.Step")
    return step


def check_step(env: Any, step: Step, acted: tuple[str, ...], where: str) -> None:
    """Require scores of declared components, and an info of plain data, of a step in which roles acted."""
    require_scores(step.scores, env, acted, where)
    require(isinstance(step.turn_over, bool), f"turn_over is {step.turn_over!r}", where, fix="True or False")
    require(isinstance(step.info, Mapping), f"info is {type_text(step.info)}", where, fix="a table")
    with guarded(f"{where}: info", "plain data: texts, numbers, lists and tables"):
        to_json({"info": step.info})


@dataclass(frozen=True, slots=True)
class PlayedStage:
    """A stage with its observations, actions and step."""

    task: Task
    pending: PendingStage
    observations: Mapping[str, Any]
    actions: Mapping[str, Action]
    step: Step
    ends_episode: bool
    alternatives: Mapping[str, Action]
    """A second action of each role, which was not stepped."""

    def joint_view(self) -> JointView:
        """The stage as a reward source of scope `joint` sees it."""
        return JointView(
            task=self.task,
            turn=self.pending.turn,
            actions=self.actions,
            state=self.pending.state,
            after=self.step.state,
            emitted=self.step.scores,
            info=self.step.info,
            terminated=self.ends_episode,
        )

    def history_entry(self, role: str) -> HistoryEntry:
        """The stage in the role's history."""
        return HistoryEntry(
            turn=self.pending.turn,
            observation=self.observations[role],
            messages=({"role": "user", "content": "?"},),
            action=self.actions[role],
            info=self.step.info,
        )


async def episode(
    env: Any, task: Task, team: Players, turns: int, rng: np.random.Generator, unread: float = 0.0
) -> list[PlayedStage]:
    """One episode, unchecked; with probability `unread` an action can't be read."""
    played: list[PlayedStage] = []
    name = type(env).__name__
    with guarded(f"{name}.reset"):
        state = env.reset(task, 0)
    pending = initial_stage(env, state, team)
    while pending is not None:
        with guarded(f"{name}.observe"):
            observations = {role: env.observe(pending.state, role) for role in pending.roles}
        actions, alternatives = team.actions(observations, rng), team.actions(observations, rng)
        for role in pending.roles:
            if rng.random() < unread:
                actions[role] = unreadable()
        ctx = StepContext(task=task, turn=pending.turn, seed=int(rng.integers(2**63)))
        step = await stepped(env, pending, actions, ctx)
        after = following_stage(env, pending, step, turns, team)
        played.append(PlayedStage(task, pending, observations, actions, step, after is None, alternatives))
        pending = after
    return played


def episode_view(stages: Sequence[PlayedStage], env: Any) -> EpisodeView:
    """An episode as a reward source of scope `episode` sees it."""
    path = []
    key = Key(stages[0].task.id)
    for stage in stages:
        decisions = {
            role: Decision(
                role=role,
                policy="policy",
                observation=stage.observations[role],
                messages=({"role": "user", "content": str(stage.observations[role])},),
                prompt_ids=(),
                prompt_sha256="",
                branches=(action,),
            )
            for role, action in stage.actions.items()
        }
        outcome = None
        if stage.ends_episode:
            with guarded(f"{type(env).__name__}.outcome"):
                outcome = env.outcome(stage.step.state)
        joint = JointAction(
            branches=dict.fromkeys(stage.actions, 0),
            state_digest="",
            terminated=stage.ends_episode,
            info=stage.step.info,
            outcome=outcome,
        )
        node = Node(
            key=key,
            turn=stage.pending.turn,
            stage=stage.pending.stage,
            decisions=decisions,
            joints=(joint,),
            expanded=(0,),
        )
        path.append((node, 0))
        key = key.child(0)
    return EpisodeView(task=stages[0].task, path=tuple(path), leaf=path[-1][0].joints[0])
