"""A sampler, a loss and an estimator that are written with public names alone pass the kit."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import (
    GROUPINGS,
    RETURNS,
    Credit,
    Horizon,
    Key,
    Node,
    NodeExpansion,
    NodePosition,
    Normaliser,
    Plan,
    Plugin,
    PluginConfig,
    RolloutContext,
    Row,
    RowConfig,
    RowEstimator,
    Rows,
    Sampling,
    Surrogate,
    Task,
    TokenBatch,
    TokenLoss,
    Tree,
    clipped_term,
    credit_groups,
    first_stage,
    grouped,
    log_ratio,
    sequence_means,
)
from coterie.testing import check_estimator, check_loss, check_sampler


class FirstBranch(Plugin):
    """Two branches a decision; the episode goes on from the first joint action that didn't fail."""

    class Config(PluginConfig):
        branches: int = 2
        temperature: float = 1.0

    @property
    def plan(self) -> Plan:
        return Plan(chains=1, branches=self.config.branches, expand="sampled", pairing="aligned")

    def sampling(self, role: str) -> Sampling:
        return Sampling(temperature=self.config.temperature)

    def for_evaluation(self, greedy: bool) -> FirstBranch:
        temperature = 0.0 if greedy else self.config.temperature
        return FirstBranch(self.Config(branches=1, temperature=temperature), self.build)

    async def play(self, task: Task, epoch: int, chain: int, ctx: RolloutContext) -> Tree:
        state = ctx.environment.reset(task, ctx.seed(Key(task.id, epoch), "reset"))
        stage = first_stage(ctx.environment, ctx.team.order, state)
        assert stage is not None
        root = await self.grow(NodePosition(task, Key(task.id, epoch, chain), state, stage, {}), ctx)
        return Tree(task=task, chain=chain, epoch=epoch, root=root)

    async def grow(self, position: NodePosition, ctx: RolloutContext) -> Node:
        at, branches = position, range(self.config.branches)
        requests, decisions = [], {}
        for role in at.stage.roles:
            history = at.history.get(role, ())
            request = await ctx.ask(role, at.state, at.stage.turn, history, self.sampling(role))
            keys = [at.key.of_branch(role, branch) for branch in branches]
            actions = await ctx.gather([ctx.act(key, request) for key in keys])
            requests.append(request)
            decisions[role] = request.decision(tuple(actions), ctx.team.members[role].trainable)
        expansion = NodeExpansion(position, requests, decisions, ctx, ctx.digest(at.state))
        for branch in branches:
            expansion.stepped.append(await expansion.step(branch, dict.fromkeys(decisions, branch)))
        await expansion.score(later=lambda source: False)
        chosen = expansion.sound[:1]
        positions = {index: child for index in chosen if (child := expansion.child(index)) is not None}
        children = {index: await self.grow(child, ctx) for index, child in positions.items()}
        return expansion.node(children, chosen, "first")


class MeanRatio(TokenLoss):
    """PPO's clipped term on the mean log-ratio of each sequence; constant outside the clip range."""

    def __call__(self, xp: Any, tokens: TokenBatch) -> Surrogate:
        difference, inside = log_ratio(xp, tokens.logprobs, tokens.proximal)
        ratio = xp.exp(difference)
        term, clipped = clipped_term(xp, ratio, tokens.advantages, 0.2, 0.2)
        grad = xp.where(clipped | ~inside, 0.0 * ratio, -ratio * tokens.advantages)
        length = sequence_means(xp, xp.ones_like(ratio), tokens)
        return self.surrogate(xp, tokens, -term * length, grad * length)


class Leads(RowEstimator):
    """Each token's share of the return, the later the larger, less a running mean of all returns."""

    Config = RowConfig
    returns = "to_go"

    def advantages(self, rows: Rows) -> list[np.ndarray | float | None]:
        mean = rows.state or 0.0
        return [(row.value - mean) * self.ramp(rows, row) for row in rows]

    @staticmethod
    def ramp(rows: Rows, row: Row) -> np.ndarray:
        tokens = len(rows.logprobs(row))
        return np.arange(1, tokens + 1) / max(tokens, 1)

    def next_state(self, rows: Rows) -> float:
        values = [row.value for row in rows]
        return 0.9 * (rows.state or 0.0) + 0.1 * sum(sorted(values)) / max(len(values), 1)


class Median(Plugin):
    """Rewards less the median of their decision's; blocks without a base class."""

    needs = ()
    weights: Mapping[str, float] = {}

    def check(self, plan: Any, team: Any) -> None:
        pass

    def __call__(self, batch: Any, state: Any) -> tuple[Credit, Any]:
        rows, plain = list(RETURNS["immediate"](batch, Horizon())), Normaliser(type="none")
        groups = grouped(rows, GROUPINGS["decision"])
        return credit_groups(groups, lambda values: values - np.median(values), plain), state


def test_a_sampler_of_public_names_passes_the_kit():
    check_sampler(FirstBranch())


def test_a_loss_of_public_names_passes_the_kit():
    check_loss(MeanRatio())


@pytest.mark.parametrize("estimator", [Leads(), Median()], ids=lambda estimator: type(estimator).__name__)
def test_an_estimator_of_public_names_passes_the_kit(estimator):
    check_estimator(estimator)


def test_this_file_imports_public_names_alone():
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name for name in modules if name and name.startswith("coterie")} == {"coterie", "coterie.testing"}
