"""`check_estimator`: credit goes to what was played and scored, and to nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.core.errors import ConfigError
from coterie.core.protocols import Batch, Plan, Team
from coterie.core.types import TEAM, Credit
from coterie.testing.support.failure import finite, guarded, require, require_kind
from coterie.testing.support.forest import PLANS, Forest, grow, order, reward_weights
from coterie.testing.support.toys import Echo, Quiet
from coterie.testing.support.values import fingerprint

NOTES = ("ref_logprobs", "old_logprobs", "values", "teacher_logprobs")


def check_estimator(estimator: Any, *, plans: Sequence[Plan] = PLANS, seeds: int = 3) -> None:
    """Check an advantage estimator on trees made by the kit, for every sampling plan that it accepts.

    The trees hold two roles, chains that end early, branches whose scores are missing, calls that the system
    lost, groups that this leaves with one member or none, and (separately) rewards that are all equal.

    - `check` accepts a plan or raises ConfigError; at least one plan is accepted, and gives credit.
    - Advantages, weights, targets, returns and metrics are finite; a per-token one has the length of what was
      sampled; weights aren't negative.
    - Only branches that exist have credit, and none has whose scores are missing or whose call was lost.
    - The order of the trees changes nothing.
    - Trees, scores and the state that went in stay as they were; the state that comes out is plain JSON, and
      goes on the same after a way through it (a resumed run).

    Args:
        plans: ways of sampling that are tried.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(estimator, "estimator")
    unknown = [need for need in estimator.needs if need not in NOTES]
    require(
        not unknown, f"unknown notes {unknown}", where=f"{name}.needs", fix=f"some of: {', '.join(NOTES)}"
    )
    for component, weight in dict(estimator.weights).items():
        require(finite(weight), f"'{component}' weighs {weight!r}", where=f"{name}.weights", fix="a number")
    accepted = [plan for plan in plans if _accepts(estimator, plan, name)]
    require(
        accepted,
        "refuses every plan that was tried",
        where=f"{name}.check",
        fix="call check_estimator with plans=[...] that it is made for",
    )
    credited = 0
    for plan in accepted:
        for seed in range(seeds):
            for flat in (False, True):
                credited += _check_on(estimator, grow(plan, seed, flat=flat), name, seed)
        credited += _check_on(estimator, grow(plan, seeds, gaps=False), name, seeds)
    require(credited, "gave no branch any credit", where=name, fix="an absent key is not trained")


def _accepts(estimator: Any, plan: Plan, name: str) -> bool:
    team = Team(
        roles={"planner": Echo(), "executor": Echo()},
        order=order(plan),
        max_turns=3,
        policies={"planner": "policy", "executor": "policy"},
        trainable={"policy": True},
        transition=Quiet(),
        tools={},
    )
    with guarded(f"{name}.check", "ConfigError for a plan that means nothing to it"):
        try:
            estimator.check(plan, team)
        except ConfigError:
            return False
    return True


def _check_on(estimator: Any, forest: Forest, name: str, seed: int) -> int:
    """Check one step; returns how many branches have credit."""
    mark = fingerprint((forest.trees, list(forest.scores)))
    credit, state = _ask(estimator, forest, name, None)
    unchanged = fingerprint((forest.trees, list(forest.scores))) == mark
    require(unchanged, "changed the trees or the scores", where=name, fix="they are values")
    _sound(credit, forest, name)

    shuffled = Forest(list(forest.trees), forest.scores, forest.tokens, forest.missing)
    np.random.default_rng(seed).shuffle(shuffled.trees)  # type: ignore[arg-type]
    _same(credit, _ask(estimator, shuffled, name, None)[0], name, "the order of the trees changes the credit")

    with guarded(f"{name}: its state", "plain JSON: numbers, texts, lists, tables with text keys"):
        there = json.loads(json.dumps(state, allow_nan=False))
    before = copy.deepcopy(state)
    onward, _ = _ask(estimator, forest, name, state)
    require(
        fingerprint(before) == fingerprint(state),
        "changed the state that it was given",
        where=name,
        fix="copy it",
    )
    _sound(onward, forest, name)
    _same(
        onward,
        _ask(estimator, forest, name, there)[0],
        name,
        "a state that was saved as JSON and read back gives other credit",
    )
    return len(credit.advantage)


def _ask(estimator: Any, forest: Forest, name: str, state: Any) -> tuple[Credit, Any]:
    alpha = float(estimator.weights.get(TEAM, 1.0))
    own = {component: weight for component, weight in estimator.weights.items() if component != TEAM}
    annotations = forest.annotations(tuple(estimator.needs))
    with guarded(name):
        answer = estimator(
            Batch(
                trees=forest.trees,
                scores=forest.scores,
                annotations=annotations,
                reward_weights=reward_weights(alpha, own),
            ),
            state,
        )
    pair = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], Credit)
    require(pair, f"returned a {type(answer).__name__}", where=name, fix="(Credit, state)")
    return answer


def _sound(credit: Credit, forest: Forest, name: str) -> None:
    for table in ("advantage", "weight", "target", "returns"):
        for key, value in getattr(credit, table).items():
            where = f"{name}: {table} of {key.text()}"
            require(
                key in forest.tokens,
                "there is no such branch",
                where=where,
                fix="node.key.of_branch(role, b)",
            )
            require(np.isfinite(value).all(), f"is {value}", where=where, fix="leave the key out instead")
            count = forest.tokens[key]
            require(
                np.ndim(value) == 0 or np.shape(value) == (count,),
                f"has shape {np.shape(value)} for {count} sampled tokens",
                where=where,
                fix="one number, or one a token",
            )
            require(
                table != "weight" or value >= 0, f"is {value}", where=where, fix="a weight is not negative"
            )
    for key in credit.advantage:
        require(
            key not in forest.missing,
            f"{key.text()} has credit, and its scores are missing",
            where=name,
            fix="leave it out of the credit, of the baseline and of every denominator; 0 is a number too",
        )
    for metric, number in credit.metrics.items():
        require(finite(number), f"{number!r}", where=f"{name}: metric {metric}", fix="a finite number")


def _same(one: Credit, other: Credit, name: str, what: str) -> None:
    for table in ("advantage", "weight", "target"):
        first, second = getattr(one, table), getattr(other, table)
        equal = first.keys() == second.keys() and all(
            np.allclose(first[key], second[key], rtol=1e-7, atol=1e-9) for key in first
        )
        require(
            equal, what, where=f"{name}: {table}", fix="no memory between calls but the state; sort by key"
        )
