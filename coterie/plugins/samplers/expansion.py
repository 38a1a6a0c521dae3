"""The expansion of one node: its joint actions are stepped, scored, compared and finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import (
    ActionView,
    JointView,
    NamedRewardSource,
    PromptRequest,
    RolloutContext,
    SiblingsView,
)
from coterie.core.rollout.contracts import converts, refuse
from coterie.core.rollout.rewards import Question, answer, mean_by_branch, stepped_reward, write
from coterie.core.rollout.turns import History, Stage, extended, next_stage
from coterie.core.types import (
    TEAM,
    Action,
    Decision,
    Fault,
    JointAction,
    Key,
    Node,
    Score,
    Step,
    Task,
    committed,
)


@dataclass(frozen=True, slots=True)
class NodePosition:
    """The place of a node that is about to be expanded: its state and the stage that is played."""

    task: Task
    key: Key
    state: Any
    stage: Stage
    history: History


@dataclass(frozen=True, slots=True)
class SteppedJoint:
    """One joint action with its step, before the choice of those to expand."""

    branches: Mapping[str, int]
    step: Step | Fault
    following: Stage | None
    """The next stage; None where the episode ends here."""
    terminated: bool
    recombined: bool = False

    @property
    def lost(self) -> bool:
        """Whether a system fault kept it from being played."""
        return isinstance(self.step, Fault) and self.step.kind == "system"


@dataclass(slots=True)
class NodeExpansion:
    """A node between its actions and its children."""

    position: NodePosition
    requests: Sequence[PromptRequest]
    decisions: Mapping[str, Decision]
    """By role, with all sampled branches."""
    ctx: RolloutContext
    state_digest: str
    """Of the state before any joint action was stepped."""
    stepped: list[SteppedJoint] = field(default_factory=list)
    """The joint actions, in the order of their indices."""

    @property
    def sound(self) -> list[int]:
        """Indices of the joint actions that no system fault lost. A policy fault ends the episode."""
        return [index for index, joint in enumerate(self.stepped) if not joint.lost]

    def actions(self, branches: Mapping[str, int]) -> dict[str, Action]:
        """The actions of a joint action, by role."""
        return committed(self.decisions, branches)

    def overflow(self) -> str:
        """End the episode here with every source's floor, since a prompt outgrew the context; returns why.

        No action is sampled, so no branch gets credit; the floors count for what led here.
        """
        reasons = {request.role: request.overflow for request in self.requests if request.overflow}
        reason, place = next(iter(reasons.values())), self.position.key.of_joint(0)
        self.stepped = [SteppedJoint({}, Fault(kind="policy", reason=reason), None, False)]
        for source in self.ctx.reward_sources:
            whole = source.scope in ("joint", "episode")
            floor = Score(float(source.plugin.policy_fault), f"floor: {reason}", source.name, whole)
            for owner in [TEAM] if whole else reasons:
                write(self.ctx.scores, source, place, floor, list(reasons), owner)
        return reason

    # ------------------------------------------------------------------------------------ step and score

    async def step(self, index: int, branches: Mapping[str, int], recombined: bool = False) -> SteppedJoint:
        """Step one joint action."""
        at, team = self.position, self.ctx.team
        step = await self.ctx.step(
            at.task, at.key.of_joint(index), at.stage.turn, at.state, self.actions(branches)
        )
        if isinstance(step, Fault):
            return SteppedJoint(branches, step, None, False, recombined)
        following, terminated = next_stage(
            self.ctx.environment, team.order, team.max_turns, at.stage, step, team.max_stages
        )
        return SteppedJoint(branches, step, following, terminated, recombined)

    async def score(self, first: int = 0, *, later: Callable[[NamedRewardSource], bool]) -> None:
        """Score the joint actions from `first` on; with `first` 0 their branches and siblings too.

        Args:
            later: whether a source is asked in the background.
        """
        ctx, key = self.ctx, self.position.key
        for index, joint in enumerate(self.stepped):
            if index >= first and isinstance(joint.step, Fault):
                place, reason = key.of_joint(index), joint.step.reason
                if joint.lost:
                    ctx.mark_missing(place, reason)
                else:
                    ctx.mark_floor(place, joint.branches, reason)
        slow = [source for source in ctx.reward_sources if later(source)]
        quick = [source for source in ctx.reward_sources if source not in slow]
        await answer(self._questions(quick, first), ctx.scores)
        if questions := self._questions(slow, first):
            ctx.later(answer(questions, ctx.scores))

    def _questions(self, sources: Sequence[NamedRewardSource], first: int) -> list[Question]:
        """What sources are asked that a choice may wait for; the other scopes come too late for it."""
        key, roles = self.position.key, self.position.stage.roles
        questions: list[Question] = []
        for source in sources:
            if source.scope == "joint":
                for index, joint in self._joint_views(first):
                    questions.append(Question(source, joint, [(key.of_joint(index), None)], roles))
            elif source.scope == "action" and first == 0:
                for branch, view in self._action_views().items():
                    places, owner = [(key.of_branch(*branch), view.action)], (view.role,)
                    questions.append(Question(source, view, places, owner, owner))
            elif source.scope == "siblings" and first == 0:
                for role, group in self._sibling_views().items():
                    several = [(key.of_branch(role, branch), act) for branch, act in enumerate(group.actions)]
                    questions.append(Question(source, group, several, (role,), [role] * len(several)))
        return questions

    # ------------------------------------------------------------------------------------------- compare

    def reward(self, index: int, role: str) -> float | None:
        """The reward of a joint action for a role; None: missing."""
        joint = self.stepped[index]
        if joint.lost:
            return None
        return stepped_reward(
            self.position.key, index, joint.branches, role, self.ctx.scores, self.ctx.reward_weights
        )

    def values(self) -> list[float | None]:
        """By joint action, its value for selection: the sum of the acting roles' rewards; None: missing."""
        values: list[float | None] = []
        for index in range(len(self.stepped)):
            rewards = [self.reward(index, role) for role in self.decisions]
            present = [reward for reward in rewards if reward is not None]
            values.append(sum(present) if len(present) == len(rewards) else None)
        return values

    @property
    def any_known(self) -> bool:
        """Whether the reward of any role at any joint action is known."""
        return any(self.reward(index, role) is not None for index in self.sound for role in self.decisions)

    def best_branches(self, best: int) -> dict[str, int]:
        """By role, the branch with the largest mean reward over its joint actions, as it is trained.

        Args:
            best: the best joint action, whose branch a role keeps where the rewards of all are missing.
        """
        branches: dict[str, int] = {}
        for role, decision in self.decisions.items():
            rewards = [self.reward(index, role) for index in range(len(self.stepped))]
            largest = argmax(mean_by_branch(self.stepped, role, len(decision.branches), rewards))
            branches[role] = self.stepped[best].branches[role] if largest is None else largest
        return branches

    def stop_above(self, bound: float) -> None:
        """End the episode at joint actions whose mean reward over the acting roles is at least `bound`."""
        for index, value in enumerate(self.values()):
            if value is not None and value >= bound * len(self.decisions):
                self.stepped[index] = replace(self.stepped[index], following=None)

    # -------------------------------------------------------------------------------------------- finish

    def child(self, index: int) -> NodePosition | None:
        """The position after a joint action; None where the episode ends with it."""
        joint, at = self.stepped[index], self.position
        if joint.following is None or isinstance(joint.step, Fault):
            return None
        prompts = {
            role: (decision.observation, decision.messages) for role, decision in self.decisions.items()
        }
        history = extended(at.history, at.stage.turn, prompts, self.actions(joint.branches), joint.step.info)
        return NodePosition(at.task, at.key.child(index), joint.step.state, joint.following, history)

    def node(self, children: Mapping[int, Node], chosen: Sequence[int], rule: str) -> Node:
        """The finished node.

        Args:
            children: the grown child by index of its joint action.
            chosen: the expanded joint actions, and `rule` the rule that chose them.
        """
        at = self.position
        return Node(
            key=at.key,
            turn=at.stage.turn,
            stage=at.stage.stage,
            decisions=self.decisions,
            joints=tuple(
                self._joint_action(joint, children.get(index), index in chosen)
                for index, joint in enumerate(self.stepped)
            ),
            state_digest=self.state_digest,
            expanded=tuple(chosen),
            rule=rule,
        )

    def _joint_action(self, joint: SteppedJoint, child: Node | None, expanded: bool) -> JointAction:
        """The finished joint action, with the outcome where an expanded one ends the episode.

        A policy fault ends it in the state before the joint action.
        """
        failed = joint.step if isinstance(joint.step, Fault) else None
        state = self.position.state if isinstance(joint.step, Fault) else joint.step.state
        ended = joint.following is None
        outcome = None
        if ended and expanded and not joint.lost:
            environment = self.ctx.environment
            with plugin_call(environment, "outcome"):
                outcome = environment.outcome(state)
            check_outcome(environment, outcome)
        return JointAction(
            branches=joint.branches,
            state_digest="" if failed else self.ctx.digest(state),
            terminated=joint.terminated,
            truncated=ended and not joint.terminated,
            child=child,
            info={} if isinstance(joint.step, Fault) else joint.step.info,
            outcome=outcome,
            recombined=joint.recombined,
            fault=failed,
        )

    # ------------------------------------------------------------------------- views for reward sources

    def _joint_views(self, first: int) -> list[tuple[int, JointView]]:
        """(index, view) of the joint actions from `first` on whose step didn't fail."""
        return [
            (
                index,
                JointView(
                    task=self.position.task,
                    turn=self.position.stage.turn,
                    actions=self.actions(joint.branches),
                    state=self.position.state,
                    after=joint.step.state,
                    emitted=joint.step.scores,
                    info=joint.step.info,
                    terminated=joint.terminated,
                ),
            )
            for index, joint in enumerate(self.stepped)
            if index >= first and isinstance(joint.step, Step)
        ]

    def _action_views(self) -> dict[tuple[str, int], ActionView]:
        """The view of every action, by (role, branch)."""
        infos: dict[tuple[str, int], Mapping[str, Any]] = {}
        for joint in self.stepped:
            if isinstance(joint.step, Step):
                for place in joint.branches.items():
                    infos.setdefault(place, joint.step.info)
        return {
            (request.role, branch): ActionView(
                task=self.position.task,
                turn=self.position.stage.turn,
                role=request.role,
                observation=request.observation,
                messages=request.messages,
                action=action,
                state=self.position.state,
                info=infos.get((request.role, branch), {}),
            )
            for request in self.requests
            for branch, action in enumerate(self.decisions[request.role].branches)
        }

    def _sibling_views(self) -> dict[str, SiblingsView]:
        """The view of each role's sibling actions, by role."""
        return {
            request.role: SiblingsView(
                task=self.position.task,
                turn=self.position.stage.turn,
                role=request.role,
                observation=request.observation,
                actions=self.decisions[request.role].branches,
            )
            for request in self.requests
        }


def check_outcome(environment: Any, outcome: Any) -> None:
    """Of `Environment.outcome`: metrics by name, and `success` in [0, 1]."""
    if not isinstance(outcome, Mapping) or "success" not in outcome:
        refuse(environment, "outcome", outcome, 'return {"success": 0, 1 or a share}, and other metrics')
    for metric, value in outcome.items():
        sound = converts(value)
        if not sound or (metric == "success" and not 0 <= float(value) <= 1):
            what = "a number from 0 to 1" if metric == "success" else "a number; NaN: there is none"
            refuse(environment, "outcome", value, f"the metric `{metric}` is {what}")


def argmax(values: Sequence[float | None]) -> int | None:
    """The index of the first largest value; None where all are missing."""
    best: int | None = None
    for index, value in enumerate(values):
        if value is not None and (best is None or value > values[best]):  # type: ignore[operator]
            best = index
    return best
