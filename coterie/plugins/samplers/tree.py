"""The default sampler: one forkable tree with three knobs (DESIGN, section 1).

- `chains`: trees from a task's root (GRPO: many, AT-GRPO: one);
- `branches`: actions sampled per decision, K;
- `expand`: which played joints go on: `best` (by the Mix), `sampled` (a keyed uniform draw), `all`;
- `pairing`, where roles act at once: `aligned` (K joints) or `cross` (K^n joints).
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
    joint_values,
    joint_views,
    made_joint,
    sibling_views,
    stopped,
    with_joints,
)


class SamplingSettings(PluginConfig):
    """How tokens are drawn; untruncated by default (invariant 4)."""

    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    max_new_tokens: int | None = Field(None, ge=1)
    stop: tuple[str, ...] | None = None

    def over(self, base: Sampling) -> Sampling:
        given = {name: value for name, value in self if value is not None}
        return Sampling(**{**{name: getattr(base, name) for name in Sampling.__slots__}, **given})


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
            "role's best branch once more, outside every baseline, and goes on from there.",
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
        return Plan(
            chains=self.config.chains,
            branches=self.config.branches,
            expand=self.config.expand,
            pairing=self.config.pairing,
            recombines=self.config.expand == "best" and self.config.commit == "per_role",
        )

    def sampling(self, role: str) -> Sampling:
        """The role's sampling settings."""
        known = self._sampling.get(role)
        if known is None:
            base = self.config.sampling.over(Sampling())
            known = self.config.roles[role].over(base) if role in self.config.roles else base
            self._sampling[role] = known
        return known

    def for_evaluation(self, greedy: bool) -> TreeSampler:
        """The same, playing each task as the policy would: one chain, one branch; greedy at temperature 0."""
        update: dict[str, Any] = {"chains": 1, "branches": 1}
        if greedy:
            update["sampling"] = self.config.sampling.model_copy(update={"temperature": 0.0})
            update["roles"] = {
                role: own.model_copy(update={"temperature": 0.0}) for role, own in self.config.roles.items()
            }
        return TreeSampler(self.config.model_copy(update=update), self.build)

    async def play(self, task: Task, epoch: int, chain: int, ctx: RolloutContext) -> Tree:
        """Play one task to its end.

        Raises:
            CoterieError: the task is over before anybody acts.
        """
        root = Key(task.id, epoch, chain)
        state = ctx.environment.reset(task, ctx.seed(Key(task.id, epoch), "reset"))
        roles = acting_roles(ctx.environment, ctx.team, state, 0)
        if not roles:
            raise CoterieError(f"task {task.id} is over before anybody acts")
        node = await self._grow(task, NodePosition(root, state, 0, 0, roles, {}), ctx)
        return Tree(task=task, chain=chain, epoch=epoch, root=node)

    async def _grow(self, task: Task, place: NodePosition, ctx: RolloutContext) -> Node:
        asked = [
            await ctx.ask(role, place.state, place.turn, place.history.get(role, ()), self.sampling(role))
            for role in place.roles
        ]
        count = self.config.branches
        seats = [(one, place.key.of_branch(one.role, branch)) for one in asked for branch in range(count)]
        actions = await ctx.active_rollouts.gather([ctx.act(key, one) for one, key in seats])
        decisions = {
            one.role: one.decision(
                tuple(actions[i * count : (i + 1) * count]),
                ctx.team.trainable.get(one.policy, False) and not ctx.evaluation,
            )
            for i, one in enumerate(asked)
        }
        node = Node(
            key=place.key,
            turn=place.turn,
            stage=place.stage,
            decisions=decisions,
            joints=(),
            state_digest=ctx.digest(place.state),
        )
        steps = [
            self._play(task, place, node, index, combination, ctx)
            for index, combination in enumerate(self._combinations(place.roles, count))
        ]
        # Tasks cost more than a quick step does; an environment that waits (a sandbox) says so.
        waits = getattr(ctx.environment, "concurrent", False)
        played = list(await asyncio.gather(*steps)) if waits else [await one for one in steps]
        await self._score(task, place, node, asked, played, 0, ctx)
        played = stopped(node, played, ctx)
        chosen, rule = self._choose(place.key, node, played, ctx)
        if rule == "per_role":
            chosen = [await self._recombine(task, place, node, asked, played, ctx)]
        return await self._extend(task, place, node, played, chosen, rule, ctx)

    def _combinations(self, roles: tuple[str, ...], count: int) -> list[dict[str, int]]:
        if self.config.pairing == "cross" and len(roles) > 1:
            return [
                dict(zip(roles, combination, strict=True))
                for combination in itertools.product(range(count), repeat=len(roles))
            ]
        return [dict.fromkeys(roles, branch) for branch in range(count)]

    async def _play(
        self,
        task: Task,
        place: NodePosition,
        node: Node,
        index: int,
        combination: Mapping[str, int],
        ctx: RolloutContext,
        recombined: bool = False,
    ) -> SteppedJoint:
        actions = committed(node.decisions, combination)
        step = await ctx.step(task, place.key.of_joint(index), place.turn, place.state, actions)
        if isinstance(step, Fault):
            return SteppedJoint(combination, step, None, False, recombined)
        then, terminal = next_stage(ctx.environment, ctx.team, place.turn, place.stage, step)
        return SteppedJoint(combination, step, then, terminal, recombined)

    async def _score(
        self,
        task: Task,
        place: NodePosition,
        node: Node,
        asked: Sequence[PromptRequest],
        played: Sequence[SteppedJoint],
        first: int,
        ctx: RolloutContext,
    ) -> None:
        """Scores of the joints from `first` on (and of their branches, the first time)."""
        for index, one in enumerate(played):
            if index >= first and isinstance(one.step, Fault):
                ctx.mark_missing(place.key.of_joint(index), one.step.reason)
        wanted = [source for source in ctx.reward_sources if source.scope in SELECTION_SCOPES]
        scopes = {source.scope for source in wanted} if first == 0 else set()
        joints = joint_views(task, place, node, played, first)
        views = action_views(task, place, node, asked) if "action" in scopes else {}
        siblings = sibling_views(task, place, node, asked) if "siblings" in scopes else {}
        # A source that is slow and that no choice waits for is asked while play goes on.
        selects = (self.config.expand == "best" and len(played) > 1) or ctx.stop_above is not None
        slow = [source for source in wanted if getattr(source.plugin, "background", False) and not selects]
        quick = [source for source in wanted if source not in slow]
        arguments: dict[str, Any] = {
            "roles": place.roles,
            "joints": joints,
            "actions": views,
            "siblings": siblings,
        }
        await score_selection(quick, ctx.scores, place.key, **arguments)
        if slow:
            ctx.later(score_selection(slow, ctx.scores, place.key, **arguments))

    def _choose(
        self, key: Key, node: Node, played: Sequence[SteppedJoint], ctx: RolloutContext
    ) -> tuple[list[int], str]:
        """Which joints go on, and the rule that chose them (invariant 11)."""
        sound = [index for index, one in enumerate(played) if isinstance(one.step, Step)]
        if not sound or len(played) == 1:
            return sound, "only"
        if self.config.expand == "all":
            return sound, "all"
        if self.config.expand == "sampled":
            return [sound[ctx.seed(key, "expand") % len(sound)]], "sampled"
        best = argmax(joint_values(node, played, ctx))
        if best is None:
            return [sound[ctx.seed(key, "expand") % len(sound)]], "uniform (all missing)"
        if self.config.commit == "per_role" and len(node.decisions) > 1:
            return [best], "per_role"
        return [best], "best"

    async def _recombine(
        self,
        task: Task,
        place: NodePosition,
        node: Node,
        asked: Sequence[PromptRequest],
        played: list[SteppedJoint],
        ctx: RolloutContext,
    ) -> int:
        """Play the combination of each role's best branch; returns its index among the played."""
        view = with_joints(node, played)
        combination = {}
        for role in place.roles:
            values: list[float | None] = [None] * self.config.branches
            for index, one in enumerate(played):
                reward = joint_reward(view, index, role, ctx.scores, ctx.reward_weights)
                best = values[one.branches[role]]
                if reward is not None and (best is None or reward > best):
                    values[one.branches[role]] = reward
            combination[role] = argmax(values) or 0
        for index, one in enumerate(played):
            if one.branches == combination:
                return index
        played.append(await self._play(task, place, node, len(played), combination, ctx, recombined=True))
        await self._score(task, place, node, asked, played, len(played) - 1, ctx)
        return len(played) - 1

    async def _extend(
        self,
        task: Task,
        place: NodePosition,
        node: Node,
        played: Sequence[SteppedJoint],
        chosen: Sequence[int],
        rule: str,
        ctx: RolloutContext,
    ) -> Node:
        """Grow the children of the chosen joints and put the node together."""
        growing = {
            index: self._grow(task, child, ctx)
            for index in chosen
            if (child := child_position(place, node, index, played[index])) is not None
        }
        grown = await ctx.active_rollouts.gather(list(growing.values())) if growing else []
        children = dict(zip(growing, grown, strict=True))
        joints = tuple(
            made_joint(one, children.get(index), index in chosen, ctx) for index, one in enumerate(played)
        )
        return replace(node, joints=joints, expanded=tuple(chosen), rule=rule)
