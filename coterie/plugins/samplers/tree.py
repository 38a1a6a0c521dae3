"""The default sampler: one forkable tree with four settings (docs/architecture.md).

- `chains`: trees from a task's root (GRPO: several, AT-GRPO: one);
- `branches`: actions sampled per decision, K;
- `expand`: the joint actions to expand: `best` (by reward), `sampled` (a keyed uniform draw) or `all`;
- `pairing`: the joint actions of roles that act at once: `aligned` (K of them) or `cross` (all K^n).
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from coterie.core.concurrency.active_rollouts import together
from coterie.core.errors import PluginError
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.plugins.origin import origin_of, plugin_call
from coterie.core.protocols import NamedRewardSource, Plan, RolloutContext
from coterie.core.rollout.contracts import check_async
from coterie.core.rollout.turns import first_stage
from coterie.core.types import Decision, Key, Node, Sampling, Task, Tree
from coterie.discovery.members import RunsInBackground, StepsConcurrently
from coterie.plugins.samplers.expansion import NodeExpansion, NodePosition, argmax

log = logging.getLogger("coterie")


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
        self._told = False
        """Whether an episode that a prompt ended was told."""

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
            PluginError: the task is over before any role acts.
        """
        root = Key(task.id, epoch, chain)
        with plugin_call(ctx.environment, "reset"):
            state = ctx.environment.reset(task, ctx.seed(Key(task.id, epoch), "reset"))
        check_async(ctx.environment, "reset", state, wanted=False)
        stage = first_stage(ctx.environment, ctx.team.order, state)
        if stage is None:
            origin = origin_of(ctx.environment)
            what = f"{origin}: acting_roles returned (): task {task.id} is over before any role acts"
            fix = "return () in final states only, or leave the task out of `tasks`"
            raise PluginError(what, path=origin.path, fix=fix)
        node = await self._grow(NodePosition(task, root, state, stage, {}), ctx)
        return Tree(task=task, chain=chain, epoch=epoch, root=node)

    async def _grow(self, position: NodePosition, ctx: RolloutContext) -> Node:
        """The node at a position, with the subtrees below it.

        A loop follows a path while one joint action goes on, so that no call nests with its length. Where
        several go on, each is an active rollout of its own.
        """
        path: list[tuple[int, NodeExpansion, list[int], str]] = []
        growing = {0: position}
        while len(growing) == 1:
            ((index, position),) = growing.items()
            expansion, chosen, rule = await self._expand(position, ctx)
            path.append((index, expansion, chosen, rule))
            growing = {at: child for at in chosen if (child := expansion.child(at)) is not None}
            if growing:  # histories grow, and the node needs none
                expansion.position = replace(position, history={})
        grown = await ctx.gather([self._grow(child, ctx) for child in growing.values()]) if growing else []
        children = dict(zip(growing, grown, strict=True))
        for index, expansion, chosen, rule in reversed(path):
            children = {index: expansion.node(children, chosen, rule)}
        return children[0]

    async def _expand(
        self, position: NodePosition, ctx: RolloutContext
    ) -> tuple[NodeExpansion, list[int], str]:
        """The expansion of a node, the joint actions to expand, and the rule that chose them."""
        expansion = await self._sample(position, ctx)
        if expansion.stepped:  # a prompt outgrew the context
            return expansion, [0], "only"
        combinations = list(enumerate(self._combinations(position.stage.roles)))
        # An asyncio task costs more than a quick step; an environment whose steps wait (for a sandbox) sets
        # `concurrent`.
        environment, several = ctx.environment, len(combinations) > 1
        if several and isinstance(environment, StepsConcurrently) and environment.concurrent:
            expansion.stepped = await together(expansion.step(*combination) for combination in combinations)
        else:
            expansion.stepped = [await expansion.step(index, branches) for index, branches in combinations]
        # Slow reward sources that selection does not need are scored in the background.
        selects = (self.config.expand == "best" and len(expansion.stepped) > 1) or ctx.stop_above is not None

        def later(source: NamedRewardSource) -> bool:
            return not selects and isinstance(source.plugin, RunsInBackground) and source.plugin.background

        await expansion.score(later=later)
        if ctx.stop_above is not None:
            expansion.stop_above(ctx.stop_above)
        chosen, rule = self._choose(expansion, ctx)
        if rule == "per_role":
            chosen = [await self._recombine(expansion, chosen[0])]
        return expansion, chosen, rule

    async def _sample(self, position: NodePosition, ctx: RolloutContext) -> NodeExpansion:
        """The node's expansion with all branches sampled."""
        turn, state, count = position.stage.turn, position.state, self.config.branches
        requests = [
            await ctx.ask(role, state, turn, position.history.get(role, ()), self.sampling(role))
            for role in position.stage.roles
        ]
        expansion = NodeExpansion(position, requests, {}, ctx, ctx.digest(state))
        if position.key.path and any(request.overflow for request in requests):
            self._warn(expansion.overflow())
            return expansion
        branches = [
            (request, position.key.of_branch(request.role, branch))
            for request in requests
            for branch in range(count)
        ]
        actions = await ctx.gather([ctx.act(key, request) for request, key in branches])
        decisions: dict[str, Decision] = {}
        for index, request in enumerate(requests):
            member = ctx.team.members[request.role]
            trainable = member.trainable and request.policy == member.policy and not ctx.evaluation
            decisions[request.role] = request.decision(
                tuple(actions[index * count : (index + 1) * count]), trainable
            )
        expansion.decisions = decisions
        return expansion

    def _warn(self, reason: str) -> None:
        """Tell the first episode that a prompt ends."""
        if not self._told:
            log.warning(
                "%s. The episode ends there with the rewards' floors, as a fault of the policy. Later "
                "ones are only counted (episodes/overflow). If the role remembers, "
                "team.overflow=truncate_oldest drops its oldest turns instead",
                reason,
            )
            self._told = True

    def _combinations(self, roles: tuple[str, ...]) -> list[dict[str, int]]:
        """The joint actions to step: {role: branch} each."""
        count = self.config.branches
        if self.config.pairing == "cross" and len(roles) > 1:
            return [
                dict(zip(roles, combination, strict=True))
                for combination in itertools.product(range(count), repeat=len(roles))
            ]
        return [dict.fromkeys(roles, branch) for branch in range(count)]

    def _choose(self, expansion: NodeExpansion, ctx: RolloutContext) -> tuple[list[int], str]:
        """The indices of the joint actions to expand, and the rule that chose them (invariant 11)."""
        sound, key = expansion.sound, expansion.position.key
        if not sound or len(expansion.stepped) == 1:
            return sound, "only"
        if self.config.expand == "all":
            return sound, "all"
        if self.config.expand == "sampled":
            return [sound[ctx.seed(key, "expand") % len(sound)]], "sampled"
        best = argmax(expansion.values())
        drawn = sound[ctx.seed(key, "expand") % len(sound)] if best is None else best
        if self.config.commit == "per_role" and len(expansion.decisions) > 1 and expansion.any_known:
            return [drawn], "per_role"  # a role whose rewards are all missing keeps its branch of this one
        return [drawn], "best" if best is not None else "uniform (all missing)"

    async def _recombine(self, expansion: NodeExpansion, best: int) -> int:
        """Step the combination of each role's best branch, where it is new.

        Returns:
            its index; that of the best joint action where a system fault lost the combination.
        """
        combination = expansion.best_branches(best)
        for index, joint in enumerate(expansion.stepped):
            if joint.branches == combination:
                return index
        index = len(expansion.stepped)
        expansion.stepped.append(await expansion.step(index, combination, recombined=True))
        await expansion.score(index, later=lambda source: False)
        return best if expansion.stepped[index].lost else index
