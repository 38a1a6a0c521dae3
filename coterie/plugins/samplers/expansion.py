"""The steps of a tree's expansion: positions, stepped joint actions, their values, and views for reward
sources."""

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
    """The place of a node that is about to be expanded: its state and the roles that act."""

    key: Key
    state: Any
    turn: int
    stage: int
    roles: tuple[str, ...]
    history: Mapping[str, tuple[HistoryEntry, ...]]


@dataclass(frozen=True, slots=True)
class SteppedJoint:
    """One joint action with its step, before the choice of those to expand."""

    branches: Mapping[str, int]
    step: Step | Fault
    following: Stage | None
    """The next stage; None where the episode ends here."""
    terminated: bool
    recombined: bool = False


def child_position(
    position: NodePosition, node: Node, index: int, joint: SteppedJoint
) -> NodePosition | None:
    """The position after a joint action; None where the episode ends with it."""
    if joint.following is None or isinstance(joint.step, Fault):
        return None
    history = dict(position.history)
    for role, action in committed(node.decisions, joint.branches).items():
        decision = node.decisions[role]
        entry = HistoryEntry(
            turn=position.turn,
            observation=decision.observation,
            messages=decision.messages,
            action=action,
            info=joint.step.info,
        )
        history[role] = (*history.get(role, ()), entry)
    turn, stage, roles = joint.following
    return NodePosition(position.key.child(index), joint.step.state, turn, stage, roles, history)


def joint_action(joint: SteppedJoint, child: Node | None, expanded: bool, ctx: RolloutContext) -> JointAction:
    """The finished joint action, with its child and, where an expanded one ends the episode, its outcome."""
    if isinstance(joint.step, Fault):
        return JointAction(
            branches=joint.branches,
            state_digest="",
            truncated=True,
            recombined=joint.recombined,
            fault=joint.step,
        )
    ended = joint.following is None
    return JointAction(
        branches=joint.branches,
        state_digest=ctx.digest(joint.step.state),
        terminated=joint.terminated,
        truncated=ended and not joint.terminated,
        child=child,
        info=joint.step.info,
        outcome=ctx.environment.outcome(joint.step.state) if ended and expanded else None,
        recombined=joint.recombined,
    )


def with_joints(node: Node, stepped: Sequence[SteppedJoint]) -> Node:
    """The node with the stepped joint actions, for `joint_reward`; without digests and children."""
    joints = tuple(
        JointAction(
            branches=joint.branches,
            state_digest="",
            recombined=joint.recombined,
            fault=joint.step if isinstance(joint.step, Fault) else None,
        )
        for joint in stepped
    )
    return Node(key=node.key, turn=node.turn, stage=node.stage, decisions=node.decisions, joints=joints)


def joint_values(node: Node, stepped: Sequence[SteppedJoint], ctx: RolloutContext) -> list[float | None]:
    """The value of each joint action for selection: the sum of the acting roles' rewards; None: missing."""
    view = with_joints(node, stepped)
    values: list[float | None] = []
    for index in range(len(stepped)):
        rewards = [joint_reward(view, index, role, ctx.scores, ctx.reward_weights) for role in node.decisions]
        values.append(
            None
            if any(reward is None for reward in rewards)
            else sum(reward for reward in rewards if reward is not None)
        )
    return values


def stopped(node: Node, stepped: Sequence[SteppedJoint], ctx: RolloutContext) -> list[SteppedJoint]:
    """The joint actions, where those with a reward of `RolloutContext.stop_above` or more end the episode."""
    if ctx.stop_above is None:
        return list(stepped)
    bound = ctx.stop_above * len(node.decisions)
    return [
        replace(joint, following=None) if value is not None and value >= bound else joint
        for joint, value in zip(stepped, joint_values(node, stepped, ctx), strict=True)
    ]


def argmax(values: Sequence[float | None]) -> int | None:
    """The index of the first largest value; None where all are missing."""
    best: int | None = None
    for index, value in enumerate(values):
        if value is not None and (best is None or value > values[best]):  # type: ignore[operator]
            best = index
    return best


# ------------------------------------------------------------------------------ views for reward sources


def joint_views(
    task: Task, position: NodePosition, node: Node, stepped: Sequence[SteppedJoint], first: int
) -> list[tuple[int, JointView]]:
    """(index, view) of the joint actions from `first` on whose step didn't fail."""
    return [
        (
            index,
            JointView(
                task=task,
                turn=position.turn,
                actions=committed(node.decisions, joint.branches),
                state=position.state,
                after=joint.step.state,
                emitted=joint.step.scores,
                info=joint.step.info,
                terminated=joint.terminated,
            ),
        )
        for index, joint in enumerate(stepped)
        if index >= first and isinstance(joint.step, Step)
    ]


def action_views(
    task: Task, position: NodePosition, node: Node, requests: Sequence[PromptRequest]
) -> dict[tuple[str, int], ActionView]:
    """The view of every action, by (role, branch)."""
    return {
        (request.role, branch): ActionView(
            task=task,
            turn=position.turn,
            role=request.role,
            observation=request.observation,
            messages=request.messages,
            action=action,
            state=position.state,
        )
        for request in requests
        for branch, action in enumerate(node.decisions[request.role].branches)
    }


def sibling_views(
    task: Task, position: NodePosition, node: Node, requests: Sequence[PromptRequest]
) -> dict[str, SiblingsView]:
    """The view of each role's sibling actions, by role."""
    return {
        request.role: SiblingsView(
            task=task,
            turn=position.turn,
            role=request.role,
            observation=request.observation,
            actions=node.decisions[request.role].branches,
        )
        for request in requests
    }
