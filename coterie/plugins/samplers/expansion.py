"""The steps of a tree's growth: where play stands, what was played, what comes next, which is best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coterie.core.protocols import ActionView, JointView, PromptRequest, RolloutContext, SiblingsView
from coterie.core.rollout.rewards import joint_reward
from coterie.core.rollout.turns import Stage
from coterie.core.types import Fault, HistoryEntry, JointAction, Key, Node, Step, Task, committed


@dataclass(frozen=True, slots=True)
class NodePosition:
    """Where play stands: the state, and who is to act."""

    key: Key
    state: Any
    turn: int
    stage: int
    roles: tuple[str, ...]
    history: Mapping[str, tuple[HistoryEntry, ...]]


@dataclass(frozen=True, slots=True)
class SteppedJoint:
    """One joint that was stepped, before it is known which go on."""

    branches: Mapping[str, int]
    step: Step | Fault
    following: Stage | None
    """What comes next; None where the episode ends here."""
    terminated: bool
    recombined: bool = False


def child_position(place: NodePosition, node: Node, index: int, played: SteppedJoint) -> NodePosition | None:
    """Where play goes on after a joint; None where the episode ends with it."""
    if played.following is None or isinstance(played.step, Fault):
        return None
    history = dict(place.history)
    for role, action in committed(node.decisions, played.branches).items():
        decision = node.decisions[role]
        entry = HistoryEntry(
            turn=place.turn,
            observation=decision.observation,
            messages=decision.messages,
            action=action,
            info=played.step.info,
        )
        history[role] = (*history.get(role, ()), entry)
    turn, stage, roles = played.following
    return NodePosition(place.key.child(index), played.step.state, turn, stage, roles, history)


def made_joint(one: SteppedJoint, child: Node | None, expanded: bool, ctx: RolloutContext) -> JointAction:
    if isinstance(one.step, Fault):
        return JointAction(
            branches=one.branches, state_digest="", truncated=True, recombined=one.recombined, fault=one.step
        )
    ended = one.following is None
    return JointAction(
        branches=one.branches,
        state_digest=ctx.digest(one.step.state),
        terminated=one.terminated,
        truncated=ended and not one.terminated,
        child=child,
        info=one.step.info,
        outcome=ctx.environment.outcome(one.step.state) if ended and expanded else None,
        recombined=one.recombined,
    )


def with_joints(node: Node, played: Sequence[SteppedJoint]) -> Node:
    joints = tuple(
        JointAction(
            branches=one.branches,
            state_digest="",
            recombined=one.recombined,
            fault=one.step if isinstance(one.step, Fault) else None,
        )
        for one in played
    )
    return Node(key=node.key, turn=node.turn, stage=node.stage, decisions=node.decisions, joints=joints)


def joint_values(node: Node, played: Sequence[SteppedJoint], ctx: RolloutContext) -> list[float | None]:
    """What a joint is worth to the choice: the sum of what it pays the roles that acted."""
    view = with_joints(node, played)
    values: list[float | None] = []
    for index in range(len(played)):
        rewards = [joint_reward(view, index, role, ctx.scores, ctx.reward_weights) for role in node.decisions]
        values.append(
            None if any(reward is None for reward in rewards) else sum(r for r in rewards if r is not None)
        )
    return values


def stopped(node: Node, played: Sequence[SteppedJoint], ctx: RolloutContext) -> list[SteppedJoint]:
    """The same, but joints that earned enough (`Play.stop_above`) have nothing that follows."""
    if ctx.stop_above is None:
        return list(played)
    bound = ctx.stop_above * len(node.decisions)
    return [
        replace(one, following=None) if value is not None and value >= bound else one
        for one, value in zip(played, joint_values(node, played, ctx), strict=True)
    ]


def argmax(values: Sequence[float | None]) -> int | None:
    """The first of the largest; None where all are missing."""
    best: int | None = None
    for index, value in enumerate(values):
        if value is not None and (best is None or value > values[best]):  # type: ignore[operator]
            best = index
    return best


# ------------------------------------------------------------------------- what reward sources are shown


def joint_views(
    task: Task, place: NodePosition, node: Node, played: Sequence[SteppedJoint], first: int
) -> list[tuple[int, JointView]]:
    """(index, view) of the joints from `first` on that could be played."""
    return [
        (
            index,
            JointView(
                task=task,
                turn=place.turn,
                actions=committed(node.decisions, one.branches),
                state=place.state,
                after=one.step.state,
                emitted=one.step.scores,
                info=one.step.info,
                terminated=one.terminated,
            ),
        )
        for index, one in enumerate(played)
        if index >= first and isinstance(one.step, Step)
    ]


def action_views(
    task: Task, place: NodePosition, node: Node, asked: Sequence[PromptRequest]
) -> dict[tuple[str, int], ActionView]:
    """By (role, branch)."""
    return {
        (one.role, branch): ActionView(
            task=task,
            turn=place.turn,
            role=one.role,
            observation=one.observation,
            messages=one.messages,
            action=action,
            state=place.state,
        )
        for one in asked
        for branch, action in enumerate(node.decisions[one.role].branches)
    }


def sibling_views(
    task: Task, place: NodePosition, node: Node, asked: Sequence[PromptRequest]
) -> dict[str, SiblingsView]:
    """By role."""
    return {
        one.role: SiblingsView(
            task=task,
            turn=place.turn,
            role=one.role,
            observation=one.observation,
            actions=node.decisions[one.role].branches,
        )
        for one in asked
    }
