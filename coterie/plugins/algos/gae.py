"""PPO's advantages: generalised advantage estimation over a value head (arXiv 1506.02438, equation 16)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from pydantic import Field

from coterie.core.errors import ConfigError
from coterie.core.protocols import Batch, Plan, Team
from coterie.core.types import Key, Node
from coterie.plugins.algos.blocks.groups import Normalised, Normaliser
from coterie.plugins.algos.blocks.returns import Potentials, Row, gain, lost_chains
from coterie.plugins.algos.blocks.rows import Advantage, RowEstimator, Rows, ScoredRow


class GAE(RowEstimator):
    """A_t = sum of (gamma lam)^k delta_{t+k}, with delta_t = r_t + gamma V(s_{t+1}) - V(s_t), by token.

    A role's tokens on a chain, action after action, are one trajectory. The rewards of the team and the role
    between an action and the role's next one are paid on the action's last token, and the next action's first
    value is the value of the state after it. The end of a chain has value 0, whether the episode terminated
    or was truncated. The trainer fits V(s_t), computed from the hidden state that predicts token t, to A_t +
    V(s_t).

    No other estimator here divides a chain's credit among its actions without siblings, so no other can give
    an idle role no credit; its price is a value function that must be learned first. When it degenerates:
    with lam 1 it is the return to go minus the value; with lam 0 it is the one-step error, which is as biased
    as the value is wrong.
    """

    class Config(Normalised):
        alpha: float = Field(1.0, description="Weight of the team's components in the reward.")
        gamma: float = Field(1.0, ge=0, le=1, description="Discount per token.")
        lam: float = Field(0.95, ge=0, le=1, description="GAE's lambda, per token.")
        normalise: Normaliser = Field(
            default_factory=lambda: Normaliser(type="whiten", scope="global", per="token", eps=1e-8)
        )

    needs = ("values",)
    returns = "to_go"
    paper_loss = "ppo_clip, value head"

    def check(self, plan: Plan, team: Team) -> None:
        if plan.branches > 1:
            raise ConfigError(
                f"gae needs whole chains, and sampler.branches is {plan.branches}",
                path="sampler.branches",
                why="the rewards after a branch that was not played out are unknown",
                fix="set sampler.branches=1, and sampler.chains to any number",
            )
        self.check_scope()

    def rows(self, batch: Batch) -> Iterator[Row]:
        """One row per (chain, role): its actions, and what was paid after each."""
        for tree in batch.trees:
            for path in (*tree.chains(), *lost_chains(tree)):
                for role in sorted({role for node, _ in path for role in node.decisions}):
                    paid = _paid(path, role, batch)
                    rewards = tuple(reward for reward in paid.values() if reward is not None)
                    value = sum(rewards) if len(rewards) == len(paid) else None
                    yield Row(role, value, tuple(paid), paid=rewards)

    def advantages(self, rows: Rows) -> list[np.ndarray]:
        """A_t of each trajectory's tokens; rewards are paid on the actions' last tokens."""
        return [self._trajectory(rows, row) for row in rows]

    def _trajectory(self, rows: Rows, row: ScoredRow) -> np.ndarray:
        gamma, lam = self.config.gamma, self.config.lam
        value = rows.annotation(row, "values").astype(np.float64)
        reward = np.zeros(len(value))
        reward[np.cumsum([rows.tokens[key] for key in row.branches]) - 1] = row.paid
        delta = reward + gamma * np.append(value[1:], 0.0) - value
        advantage, following = np.empty_like(delta), 0.0
        for t in range(len(delta) - 1, -1, -1):
            advantage[t] = following = delta[t] + gamma * lam * following
        return advantage

    def targets(self, rows: Rows, values: Sequence[Advantage]) -> list[np.ndarray]:
        """A_t + V(s_t)."""
        pairs = zip(rows, values, strict=True)
        return [advantage + rows.annotation(row, "values") for row, advantage in pairs]

    def metrics(self, rows: Rows, values: Sequence[Advantage]) -> Mapping[str, float]:
        """The mean target, over tokens."""
        targets = self.targets(rows, values)
        return {"value/target": float(np.concatenate(targets).mean())} if targets else {}


def _paid(path: Sequence[tuple[Node, int]], role: str, batch: Batch) -> dict[Key, float | None]:
    """The reward between each action of the role and its next one, by action; None: missing.

    Rewards before the role's first action are left out. An action without values (of an untrained policy, or
    empty) is not part of the trajectory: the rewards after it count for the action before it.
    """
    values = batch.annotations["values"]
    potentials: Potentials = {}
    by_action: dict[Key, float | None] = {}
    last: Key | None = None
    for node, index in path:
        if role in node.decisions:
            branch = node.joints[index].branches[role]
            key = node.key.of_branch(role, branch)
            if len(values.get(key, ())) or not node.decisions[role].branches[branch].trainable:
                last, by_action[key] = key, 0.0
        reward, potentials = gain(node, index, role, batch.scores, batch.reward_weights, potentials)
        if last is not None:
            total = by_action[last]
            by_action[last] = None if total is None or reward is None else total + reward
    return by_action
