"""The credit that an estimator gives the trees of `coterie.testing.support.trees`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.core.protocols import Batch, Member, Plan, Team
from coterie.core.types import TEAM, Annotations, Credit, RewardWeights
from coterie.testing import build
from coterie.testing.support.toys import EchoRole, SilentTransition
from coterie.testing.support.trees import Forest, places

BRANCHES = Plan(chains=1, branches=4, expand="best", pairing="aligned")
CHAINS = Plan(chains=4, branches=1, expand="best", pairing="aligned")
ALL = Plan(chains=1, branches=2, expand="all", pairing="aligned")
CROSS = Plan(chains=1, branches=2, expand="all", pairing="cross")

TREES = ("magrpo", "marloo", "mareinforce", "maremax")
PLANS: dict[str, Plan] = {
    "at_grpo": BRANCHES,
    "grpo": CHAINS,
    "dr_grpo": CHAINS,
    "rloo": CHAINS,
    "reinforce": CHAINS,
    **dict.fromkeys(TREES, ALL),
    "reinforce_pp": CHAINS,
    "reinforce_pp_baseline": CHAINS,
    "rae": CHAINS,
    "gae": CHAINS,
}
"""Every estimator but `compose`, with a way of sampling that it accepts."""


def estimator(
    name: str, *, plan: Plan | None = None, forest: Forest | None = None, turns: int = 4, **settings: Any
) -> Any:
    """One of the registered estimators, checked against a plan and a team."""
    algorithm = build("estimator", {"type": name, **settings})
    algorithm.check(plan or PLANS.get(name, ALL), team(forest.order if forest else (("one",),), turns))
    return algorithm


def team(order: Sequence[Sequence[str]] = (("one",),), turns: int = 4) -> Team:
    names = [role for stage in order for role in stage]
    return Team(
        members={name: Member(role=EchoRole(), policy="p") for name in names},
        order=tuple(tuple(stage) for stage in order),
        max_turns=turns,
        transition=SilentTransition(),
    )


def credit(
    algorithm: Any, forest: Forest, annotations: Annotations | None = None, state: Any = None
) -> Credit:
    """The credit of a checked estimator for a step."""
    return step(algorithm, forest, annotations, state)[0]


def step(
    algorithm: Any, forest: Forest, annotations: Annotations | None = None, state: Any = None
) -> tuple[Credit, Any]:
    """(credit, state)."""
    zeros = {name: table for need in algorithm.needs for name, table in forest.annotations(need, {}).items()}
    reward_weights = RewardWeights(
        team_weight=float(algorithm.weights.get(TEAM, 1.0)),
        kinds={"potential": "potential", "own_potential": "potential", "fork": "counterfactual"},
    )
    batch = Batch(
        trees=forest.trees,
        scores=forest.scores,
        annotations={**zeros, **(annotations or {})},
        reward_weights=reward_weights,
    )
    answer: tuple[Credit, Any] = algorithm(batch, state)
    return answer


def advantages(
    name: str, forest: Forest, *, annotations: Annotations | None = None, **settings: Any
) -> dict[str, Any]:
    """Advantages by place, from a registered estimator."""
    return places(credit(estimator(name, forest=forest, **settings), forest, annotations).advantage)
