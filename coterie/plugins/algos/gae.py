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

    A role's tokens on a chain, action after action, are one trajectory; what the team or the role earned
    after an action and before the role's next one is paid on the action's last token, and the next action's
    first value is the state after it. The end of a chain, be it the game's or the turn limit's, is worth 0.
    The trainer learns V(s_t), from the hidden state that predicts token t, towards A_t + V(s_t).

    The only estimator here that divides a chain's credit among its actions without siblings, so it is also
    the one that can leave an idle role alone; it has to learn a value first. When it degenerates: with lam
    1 it is the return to go minus the value; with lam 0 the one-step error, which is as biased as the value
    is wrong.
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
                f"gae follows whole chains, and branches is {plan.branches}",
                path="sampler.branches",
                why="what comes after a branch that was not played out is not known",
                fix="set sampler.branches=1 (and sampler.chains to as many as you like)",
            )
        if self.config.normalise.type != "none" and self.config.normalise.scope == "group":
            raise ConfigError(
                "gae has no groups",
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
                    found = self._advantages([values[key] for key in paid], rewards)
                    for key, own, reward in zip(paid, found, rewards, strict=True):
                        advantage[key], target[key], returns[key] = own, own + values[key], reward
        scaled: Mapping[Key, Any] = advantage
        if self.config.normalise.type != "none":
            scaled = normalise_batch(advantage, token_counts(batch.trees), self.config.normalise)
        metrics = {name: value for role, count in counts.items() for name, value in count.metrics(role)}
        if target:
            metrics["value/target"] = float(np.concatenate(list(target.values())).mean())
        return Credit(advantage=dict(scaled), target=target, returns=returns, metrics=metrics), state

    def _advantages(self, values: Sequence[np.ndarray], rewards: Sequence[float]) -> list[np.ndarray]:
        """By action, shape (tokens,) each; `rewards` are paid on the actions' last tokens."""
        flat = np.concatenate(values).astype(np.float64)
        paid = np.zeros(len(flat))
        ends = np.cumsum([len(own) for own in values])
        paid[ends - 1] = rewards
        deltas = paid + self.config.gamma * np.append(flat[1:], 0.0) - flat
        total = 0.0
        for at in range(len(deltas) - 1, -1, -1):
            deltas[at] = total = deltas[at] + self.config.gamma * self.config.lam * total
        return np.split(deltas, ends[:-1])


def _paid(path: Sequence[tuple[Node, int]], role: str, batch: Batch) -> dict[Key, float | None]:
    """By action of the role: what was earned from it until its next one; None: missing.

    What came before its first is nobody's. An action without values (an untrained policy's, an empty one) is
    no place of the trajectory, and what it led to is paid on the one before.
    """
    values = batch.annotations["values"]
    levels: Potentials = {}
    found: dict[Key, float | None] = {}
    key: Key | None = None
    for node, index in path:
        if role in node.decisions:
            branch = node.joints[index].branches[role]
            own = node.key.of_branch(role, branch)
            if len(values.get(own, ())) or not node.decisions[role].branches[branch].trainable:
                key, found[own] = own, 0.0
        paid, levels = gain(node, index, role, batch.scores, batch.reward_weights, levels)
        if key is not None:
            total = found[key]
            found[key] = None if total is None or paid is None else total + paid
    return found
