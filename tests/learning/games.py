"""Two tiny games, and what trains on them: tables of logits behind the same protocols as any model.

In the matrix game [[1, 0], [0, .6]] two roles act at once and must settle on the better of two conventions;
in the hand-over only the first role's action matters.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np

from coterie.api.open_run import open_run
from coterie.compose import compose
from coterie.compose.evaluation_sets import first_tasks
from coterie.core.loop import train
from coterie.core.plugins import Composed, Plugin, PluginConfig
from coterie.core.protocols import AdvantageEstimator
from coterie.core.training.evaluation import evaluate
from coterie.core.training.run import Run
from coterie.recipes import load
from coterie.testing.support.toys import ROLE

GAMES: dict[str, dict[str, Any]] = {
    "matrix": {"env": {"type": "tests.games:Matrix"}, "roles": ("row", "column"), "together": True},
    "hand_over": {"env": {"type": "tests.games:HandOver"}, "roles": ("giver", "taker")},
    "late_hand_over": {
        "env": {"type": "tests.games:HandOver", "late": True},
        "roles": ("giver", "taker"),
        "turns": 2,
    },
}
CHAINS = {"chains": 8, "branches": 1}
BRANCHES = {"chains": 1, "branches": 8}
TREE = {"chains": 1, "branches": 3, "expand": "all"}


def game(name: str, sampler: Mapping[str, Any], algorithm: Any, seed: int, **tables: Any) -> Run:
    """A composed run of a game with tabular policies, one a role."""
    chosen = GAMES[name]
    roles = chosen["roles"]
    table: dict[str, Any] = {
        "seed": seed,
        "env": {**chosen["env"], "tasks": 400},
        "team": {
            "order": [list(roles)] if chosen.get("together") else list(roles),
            "max_turns": chosen.get("turns", 1),
            "roles": {role: {"type": ROLE, "policy": role} for role in roles},
        },
        "policies": {role: {"model": {"init": "tabular"}} for role in roles},
        "sampler": {**sampler, "sampling": {"max_new_tokens": 1}},
        "algorithm": algorithm,
        "loss": {"type": "reinforce", "length": "sequence_mean"},
        "engine": "tabular",
        "trainer": {"type": "tabular", "learning_rate": 2.0},
        "schedule": {"steps": 40, "tasks_per_step": 16},
        "trackers": {},
    }
    table.update(tables)
    return compose(load(table))


@dataclasses.dataclass(frozen=True)
class Learned:
    """What training came to."""

    before: float
    """Success of random play."""
    after: float
    moved: Mapping[str, float]
    """role -> the largest KL(now || start) of its distributions, in nats, over the contexts it has met."""


def learn(run: Run) -> Learned:
    """Train, and evaluate before and after on 400 tasks."""

    async def go() -> Learned:
        await open_run(run)
        tasks = first_tasks(run.environment, "test", 400, run.config.seed)
        try:
            before = (await evaluate(run, "test", tasks)).success.mean
            await train(run)
            after = (await evaluate(run, "test", tasks)).success.mean
            return Learned(before, after, {policy: _moved(run, policy) for policy in run.config.policies})
        finally:
            await run.close()

    return asyncio.run(go())


def _moved(run: Run, policy: str) -> float:
    table = run.trainer.weights(policy).module
    if not hasattr(table, "rows"):
        return float("nan")
    largest = 0.0
    for logits in table.rows.values():
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        entropy = -float(np.sum(shares * np.log(np.maximum(shares, 1e-300))))
        largest = max(largest, float(np.log(len(shares))) - entropy)  # the start is uniform
    return largest


class Spoiled(Plugin):
    """An estimator whose advantages are negated, or dealt anew among all branches of the step."""

    class Config(PluginConfig):
        inner: Annotated[Any, Composed("estimator")]
        how: Literal["flipped", "shuffled"]

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(self._inner.needs)

    @property
    def weights(self) -> Mapping[str, float]:
        return dict(self._inner.weights)

    @property
    def _inner(self) -> AdvantageEstimator:
        inner: AdvantageEstimator = self.config.inner
        return inner

    def check(self, plan: Any, team: Any) -> None:
        self._inner.check(plan, team)

    def __call__(self, batch: Any, state: Any) -> Any:
        credit, state = self._inner(batch, state)
        if self.config.how == "flipped":
            wrong = {key: -value for key, value in credit.advantage.items()}
        else:
            keys = sorted(credit.advantage)
            dealt = np.random.default_rng(len(keys)).permutation(len(keys))
            wrong = {key: credit.advantage[keys[at]] for key, at in zip(keys, dealt, strict=True)}
        return dataclasses.replace(credit, advantage=wrong), state
