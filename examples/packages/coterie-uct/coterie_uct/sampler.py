"""Sampler `uct`: each further episode goes where earlier ones did well, or where few have been."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from pydantic import Field, model_validator

from coterie import (
    ConfigError,
    Decision,
    Fault,
    Key,
    Node,
    NodeExpansion,
    NodePosition,
    RolloutContext,
    Task,
    Tree,
    TreeSampler,
    first_stage,
)


@dataclass(slots=True)
class SearchNode:
    """A node of the search: what was sampled there, and how the episodes through it went."""

    expansion: NodeExpansion
    rewards: Sequence[float | None]
    """Of each joint action, summed over the roles that act; None: missing."""
    arms: list[int]
    """The joint actions that an episode may take: none that a system fault lost, and one for each state."""
    visits: list[int]
    returns: list[list[float]]
    """By joint action: what the episodes through it earned from here on."""
    children: dict[int, SearchNode] = field(default_factory=dict)


class UCT(TreeSampler):
    """Upper confidence bounds applied to trees (Kocsis and Szepesvari, 2006), over joint actions.

    At a node `branches` actions of each role are sampled, once; those that lead to the same state are one. An
    episode takes the first that was never taken; else the one with the largest

        mean return of the episodes through it + exploration * sqrt(ln(episodes here) / episodes through it).

    It goes on to the end of the game, so that each of the `episodes` is a whole one. Roles that act at once
    play their i-th branches. All follows from the keyed draws of the branches: a run repeats bit for bit.
    """

    class Config(TreeSampler.Config):
        branches: int = Field(3, ge=1)
        episodes: int = Field(8, ge=1, description="Whole episodes of a tree.")
        exploration: float = Field(0.2, ge=0, description="Weight of the bound, in units of the return.")

        @model_validator(mode="after")
        def _search_decides(self) -> UCT.Config:
            unread = {"expand", "pairing", "commit"} & self.model_fields_set
            if unread and (self.expand, self.pairing, self.commit) != ("best", "aligned", "joint"):
                raise ValueError(f"the search reads no {', '.join(sorted(unread))}: leave it out")
            return self

    config: Config

    async def play(self, task: Task, epoch: int, chain: int, ctx: RolloutContext) -> Tree:
        """The tree of `episodes` episodes."""
        state = ctx.environment.reset(task, ctx.seed(Key(task.id, epoch), "reset"))
        stage = first_stage(ctx.environment, ctx.team.order, state)
        if stage is None:
            raise ConfigError(f"task {task.id} is over before any role acts", path="env")
        root = await self._place(NodePosition(task, Key(task.id, epoch, chain), state, stage, {}), ctx)
        totals = [await self._episode(root, ctx) for _ in range(self.config.episodes)]
        known = [total for total in totals if total is not None]
        ctx.count("uct/trees", float(bool(known)))
        ctx.count("uct/best_return", max(known, default=0.0))
        return Tree(task=task, chain=chain, epoch=epoch, root=_node(root))

    async def _place(self, position: NodePosition, ctx: RolloutContext) -> SearchNode:
        """A node with all its joint actions stepped and scored."""
        at, count = position, self.config.branches
        requests = [
            await ctx.ask(role, at.state, at.stage.turn, at.history.get(role, ()), self.sampling(role))
            for role in at.stage.roles
        ]
        expansion = NodeExpansion(position, requests, {}, ctx, ctx.digest(at.state))
        if at.key.path and any(request.overflow for request in requests):
            expansion.overflow()
        else:
            decisions: dict[str, Decision] = {}
            for request in requests:
                keys = [at.key.of_branch(request.role, branch) for branch in range(count)]
                actions = await ctx.gather([ctx.act(key, request) for key in keys])
                trainable = ctx.team.members[request.role].trainable and not ctx.evaluation
                decisions[request.role] = request.decision(tuple(actions), trainable)
            expansion.decisions = decisions
            for branch in range(count):
                expansion.stepped.append(await expansion.step(branch, dict.fromkeys(decisions, branch)))
            await expansion.score(later=lambda source: False)
            if ctx.stop_above is not None:
                expansion.stop_above(ctx.stop_above)
        joints = len(expansion.stepped)
        visits = [0] * joints
        returns: list[list[float]] = [[] for _ in range(joints)]
        return SearchNode(expansion, expansion.values(), _arms(expansion), visits, returns)

    async def _episode(self, root: SearchNode, ctx: RolloutContext) -> float | None:
        """Play one more episode; its return, None where a reward is missing."""
        path: list[tuple[SearchNode, int]] = []
        place: SearchNode | None = root
        while place is not None and (index := self._choice(place)) is not None:
            path.append((place, index))
            place.visits[index] += 1
            if index not in place.children and (position := place.expansion.child(index)) is not None:
                place.children[index] = await self._place(position, ctx)
            place = place.children.get(index)
        total: float | None = 0.0
        for place, index in reversed(path):
            reward = place.rewards[index]
            total = None if total is None or reward is None else total + reward
            if total is not None:
                place.returns[index].append(total)
        return total

    def _choice(self, place: SearchNode) -> int | None:
        """The joint action that the next episode takes; None where a system fault lost them all."""
        for index in place.arms:
            if not place.visits[index]:
                return index
        bound = math.log(max(sum(place.visits), 1))

        def upper(index: int) -> float:
            mean = fmean(place.returns[index]) if place.returns[index] else -math.inf
            return mean + self.config.exploration * math.sqrt(bound / place.visits[index])

        return max(place.arms, key=upper, default=None)


def _arms(expansion: NodeExpansion) -> list[int]:
    """The sound joint actions; of those that reach one state, the first."""
    reached: dict[str, int] = {}
    for index in expansion.sound:
        step = expansion.stepped[index].step
        state = f"fault {index}" if isinstance(step, Fault) else expansion.ctx.digest(step.state)
        reached.setdefault(state, index)
    return list(reached.values())


def _node(place: SearchNode) -> Node:
    """The finished node; the joint actions that episodes took are its expanded ones."""
    taken = [index for index, visits in enumerate(place.visits) if visits]
    children = {index: _node(child) for index, child in place.children.items()}
    return place.expansion.node(children, taken, "uct")
