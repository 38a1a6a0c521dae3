"""The default sampler: one forkable tree with four settings (DESIGN, section 1).

- `chains`: trees from a task's root (GRPO: several, AT-GRPO: one);
- `branches`: actions sampled per decision, K;
- `expand`: the joint actions to expand: `best` (by reward), `sampled` (a keyed uniform draw) or `all`;
- `pairing`: the joint actions of roles that act at once: `aligned` (K of them) or `cross` (all K^n).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from coterie.core.errors import CoterieError
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.protocols import Plan, PromptRequest, RolloutContext
from coterie.core.rollout.rewards import SELECTION_SCOPES, joint_reward, score_selection
from coterie.core.rollout.turns import acting_roles, next_stage
from coterie.core.types import Fault, Key, Node, Sampling, Step, Task, Tree, committed
from coterie.plugins.samplers.expansion import (
    NodePosition,
    SteppedJoint,
    action_views,
    argmax,
    child_position,
    joint_action,
    joint_values,
    joint_views,
    sibling_views,
    stopped,
    with_joints,
)


class SamplingSettings(PluginConfig):
    """How tokens are drawn. By default from the policy's full distribution (invariant 4)."""

    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    max_new_tokens: int | None = Field(None, ge=1)
    stop: tuple[str, ...] | None = None

    def over(self, base: Sampling) -> Sampling:
        """`base` with the fields that are set here."""
        overrides = {name: value for name, value in self if value is not None}
        return Sampling(**{**{name: getattr(base, name) for name in Sampling.__slots__}, **overrides})


class TreeSampler(Plugin):
    """Grows one tree from a task's root."""

    class Config(PluginConfig):
        chains: int = Field(1, ge=1)
        branches: int = Field(1, ge=1)
        expand: Literal["best", "sampled", "all"] = "best"
        pairing: Literal["aligned", "cross"] = "aligned"
        commit: Literal["joint", "per_role"] = Field(
            "joint",
            description="With `best` and roles that act at once: `per_role` plays the combination of each "
            "role's best branch, outside every baseline, and expands it.",
        )
        sampling: SamplingSettings = SamplingSettings()
        roles: dict[str, SamplingSettings] = Field(
            default_factory=dict, description="By role, over `sampling`."
        )

    config: Config

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        self._sampling: dict[str, Sampling] = {}

    @property
    def plan(self) -> Plan:
        """How trees are sampled, for an estimator's `check`."""
        return Plan(
            chains=self.config.chains,
            branches=self.config.branches,
            expand=self.config.expand,
            pairing=self.config.pairing,
            recombines=self.config.expand == "best" and self.config.commit == "per_role",
        )

    def sampling(self, role: str) -> Sampling:
        """The role's sampling settings."""
        settings = self._sampling.get(role)
        if settings is None:
            base = self.config.sampling.over(Sampling())
            settings = self.config.roles[role].over(base) if role in self.config.roles else base
            self._sampling[role] = settings
        return settings

    def for_evaluation(self, greedy: bool) -> TreeSampler:
        """This sampler with one chain and one branch per task; greedy: at temperature 0."""
        update: dict[str, Any] = {"chains": 1, "branches": 1}
        if greedy:
            update["sampling"] = self.config.sampling.model_copy(update={"temperature": 0.0})
            update["roles"] = {
                role: settings.model_copy(update={"temperature": 0.0})
                for role, settings in self.config.roles.items()
            }
        return TreeSampler(self.config.model_copy(update=update), self.build)

    async def play(self, task: Task, epoch: int, chain: int, ctx: RolloutContext) -> Tree:
        """Play one task to its end.

        Raises:
            CoterieError: the task is over before any role acts.
        """
        root = Key(task.id, epoch, chain)
        state = ctx.environment.reset(task, ctx.seed(Key(task.id, epoch), "reset"))
        roles = acting_roles(ctx.environment, ctx.team, state, 0)
        if not roles:
            raise CoterieError(f"task {task.id} is over before any role acts")
        node = await self._grow(task, NodePosition(root, state, 0, 0, roles, {}), ctx)
        return Tree(task=task, chain=chain, epoch=epoch, root=node)

    async def _grow(self, task: Task, position: NodePosition, ctx: RolloutContext) -> Node:
        """The node at a position, with the subtrees below it."""
        requests = [
            await ctx.ask(
                role, position.state, position.turn, position.history.get(role, ()), self.sampling(role)
            )
            for role in position.roles
        ]
        count = self.config.branches
        branches = [
            (request, position.key.of_branch(request.role, branch))
            for request in requests
            for branch in range(count)
        ]
        actions = await ctx.active_rollouts.gather([ctx.act(key, request) for request, key in branches])
        decisions = {
            request.role: request.decision(
                tuple(actions[i * count : (i + 1) * count]),
                ctx.team.trainable.get(request.policy, False) and not ctx.evaluation,
            )
            for i, request in enumerate(requests)
        }
        node = Node(
            key=position.key,
            turn=position.turn,
            stage=position.stage,
            decisions=decisions,
            joints=(),
            state_digest=ctx.digest(position.state),
        )
        steps = [
            self._step(task, position, node, index, combination, ctx)
            for index, combination in enumerate(self._combinations(position.roles, count))
        ]
        # An asyncio task costs more than a quick step; an environment whose steps wait (for a sandbox) sets
        # `concurrent`.
        concurrent = getattr(ctx.environment, "concurrent", False)
        stepped = list(await asyncio.gather(*steps)) if concurrent else [await step for step in steps]
        await self._score(task, position, node, requests, stepped, 0, ctx)
        stepped = stopped(node, stepped, ctx)
        chosen, rule = self._choose(position.key, node, stepped, ctx)
        if rule == "per_role":
            chosen = [await self._recombine(task, position, node, requests, stepped, ctx)]
        return await self._extend(task, position, node, stepped, chosen, rule, ctx)

    def _combinations(self, roles: tuple[str, ...], count: int) -> list[dict[str, int]]:
        """The joint actions to step: {role: branch} each."""
        if self.config.pairing == "cross" and len(roles) > 1:
            return [
                dict(zip(roles, combination, strict=True))
                for combination in itertools.product(range(count), repeat=len(roles))
            ]
        return [dict.fromkeys(roles, branch) for branch in range(count)]

    async def _step(
        self,
        task: Task,
        position: NodePosition,
        node: Node,
        index: int,
        combination: Mapping[str, int],
        ctx: RolloutContext,
        recombined: bool = False,
    ) -> SteppedJoint:
        actions = committed(node.decisions, combination)
        step = await ctx.step(task, position.key.of_joint(index), position.turn, position.state, actions)
        if isinstance(step, Fault):
            return SteppedJoint(combination, step, None, False, recombined)
        following, terminated = next_stage(ctx.environment, ctx.team, position.turn, position.stage, step)
        return SteppedJoint(combination, step, following, terminated, recombined)

    async def _score(
        self,
        task: Task,
        position: NodePosition,
        node: Node,
        requests: Sequence[PromptRequest],
        stepped: Sequence[SteppedJoint],
        first: int,
        ctx: RolloutContext,
    ) -> None:
        """Score the joint actions from `first` on; with `first` 0 their branches and siblings too."""
        for index, joint in enumerate(stepped):
            if index >= first and isinstance(joint.step, Fault):
                ctx.mark_missing(position.key.of_joint(index), joint.step.reason)
        sources = [source for source in ctx.reward_sources if source.scope in SELECTION_SCOPES]
        scopes = {source.scope for source in sources} if first == 0 else set()
        actions = action_views(task, position, node, requests) if "action" in scopes else {}
        siblings = sibling_views(task, position, node, requests) if "siblings" in scopes else {}
        # Slow reward sources that selection does not need are scored in the background.
        selects = (self.config.expand == "best" and len(stepped) > 1) or ctx.stop_above is not None
        slow = [source for source in sources if getattr(source.plugin, "background", False) and not selects]
        quick = [source for source in sources if source not in slow]
        arguments: dict[str, Any] = {
            "roles": position.roles,
            "joints": joint_views(task, position, node, stepped, first),
            "actions": actions,
            "siblings": siblings,
        }
        await score_selection(quick, ctx.scores, position.key, **arguments)
        if slow:
            ctx.later(score_selection(slow, ctx.scores, position.key, **arguments))

    def _choose(
        self, key: Key, node: Node, stepped: Sequence[SteppedJoint], ctx: RolloutContext
    ) -> tuple[list[int], str]:
        """The indices of the joint actions to expand, and the rule that chose them (invariant 11)."""
        sound = [index for index, joint in enumerate(stepped) if isinstance(joint.step, Step)]
        if not sound or len(stepped) == 1:
            return sound, "only"
        if self.config.expand == "all":
            return sound, "all"
        if self.config.expand == "sampled":
            return [sound[ctx.seed(key, "expand") % len(sound)]], "sampled"
        best = argmax(joint_values(node, stepped, ctx))
        if best is None:
            return [sound[ctx.seed(key, "expand") % len(sound)]], "uniform (all missing)"
        if self.config.commit == "per_role" and len(node.decisions) > 1:
            return [best], "per_role"
        return [best], "best"

    async def _recombine(
        self,
        task: Task,
        position: NodePosition,
        node: Node,
        requests: Sequence[PromptRequest],
        stepped: list[SteppedJoint],
        ctx: RolloutContext,
    ) -> int:
        """Step the combination of each role's best branch, where it is new; returns its index in
        `stepped`."""
        view = with_joints(node, stepped)
        combination = {}
        for role in position.roles:
            values: list[float | None] = [None] * self.config.branches
            for index, joint in enumerate(stepped):
                reward = joint_reward(view, index, role, ctx.scores, ctx.reward_weights)
                best = values[joint.branches[role]]
                if reward is not None and (best is None or reward > best):
                    values[joint.branches[role]] = reward
            combination[role] = argmax(values) or 0
        for index, joint in enumerate(stepped):
            if joint.branches == combination:
                return index
        index = len(stepped)
        stepped.append(await self._step(task, position, node, index, combination, ctx, recombined=True))
        await self._score(task, position, node, requests, stepped, index, ctx)
        return index

    async def _extend(
        self,
        task: Task,
        position: NodePosition,
        node: Node,
        stepped: Sequence[SteppedJoint],
        chosen: Sequence[int],
        rule: str,
        ctx: RolloutContext,
    ) -> Node:
        """The node with its joint actions, the children of the chosen ones grown."""
        growing = {
            index: self._grow(task, child, ctx)
            for index in chosen
            if (child := child_position(position, node, index, stepped[index])) is not None
        }
        grown = await ctx.active_rollouts.gather(list(growing.values())) if growing else []
        children = dict(zip(growing, grown, strict=True))
        joints = tuple(
            joint_action(joint, children.get(index), index in chosen, ctx)
            for index, joint in enumerate(stepped)
        )
        return replace(node, joints=joints, expanded=tuple(chosen), rule=rule)
