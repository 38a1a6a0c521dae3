"""PPO's advantages: generalised advantage estimation over a value head (arXiv 1506.02438, equation 16)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from coterie.core.errors import ConfigError
from coterie.core.plugins import Plugin
from coterie.core.protocols import Batch, Plan, Team
from coterie.core.types import TEAM, Credit, Key, Node
from coterie.plugins.algos.blocks.groups import Counts, Normalised, Normaliser, normalise_batch
from coterie.plugins.algos.blocks.returns import Potentials, gain, lost_chains, token_counts


class GAE(Plugin):
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
    sums_over_turns = True

    @property
    def weights(self) -> Mapping[str, float]:
        return {TEAM: self.config.alpha}

    def check(self, plan: Plan, team: Team) -> None:
        if plan.branches > 1:
            raise ConfigError(
                f"gae needs whole chains, and sampler.branches is {plan.branches}",
                path="sampler.branches",
                why="the rewards after a branch that was not played out are unknown",
                fix="set sampler.branches=1, and sampler.chains to any number",
            )
        if self.config.normalise.type != "none" and self.config.normalise.scope == "group":
            raise ConfigError(
                "gae has no groups to normalise over",
                path="algorithm.normalise.scope",
                fix="set it to global or role, or algorithm.normalise.type=none",
            )

    def __call__(self, batch: Batch, state: Any) -> tuple[Credit, Any]:
        values = batch.annotations["values"]
        advantage: dict[Key, np.ndarray] = {}
        target: dict[Key, np.ndarray] = {}
        returns: dict[Key, float] = {}
        counts: dict[str, Counts] = {}
        for tree in batch.trees:
            for path in (*tree.chains(), *lost_chains(tree)):
                for role in sorted({role for node, _ in path for role in node.decisions}):
                    paid = _paid(path, role, batch)
                    rewards = [reward for reward in paid.values() if reward is not None]
                    missing = len(rewards) < len(paid)
                    counts.setdefault(role, Counts()).add(False, False, missing)
                    if missing or not paid:
                        continue
                    per_action = self._advantages([values[key] for key in paid], rewards)
                    for key, tokens, reward in zip(paid, per_action, rewards, strict=True):
                        advantage[key], target[key], returns[key] = tokens, tokens + values[key], reward
        scaled: Mapping[Key, Any] = advantage
        if self.config.normalise.type != "none":
            scaled = normalise_batch(advantage, token_counts(batch.trees), self.config.normalise)
        metrics = {name: value for role, count in counts.items() for name, value in count.metrics(role)}
        if target:
            metrics["value/target"] = float(np.concatenate(list(target.values())).mean())
        return Credit(advantage=dict(scaled), target=target, returns=returns, metrics=metrics), state

    def _advantages(self, values: Sequence[np.ndarray], rewards: Sequence[float]) -> list[np.ndarray]:
        """Advantages by action, shape (tokens,) each; `rewards` are paid on the actions' last tokens."""
        gamma, lam = self.config.gamma, self.config.lam
        value = np.concatenate(values).astype(np.float64)
        ends = np.cumsum([len(action_values) for action_values in values])
        reward = np.zeros(len(value))
        reward[ends - 1] = rewards
        delta = reward + gamma * np.append(value[1:], 0.0) - value
        advantage, following = np.empty_like(delta), 0.0
        for t in range(len(delta) - 1, -1, -1):
            advantage[t] = following = delta[t] + gamma * lam * following
        return np.split(advantage, ends[:-1])


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
