"""`check_estimator`: credit for branches that were played and scored, and for no others."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from coterie.core.errors import ConfigError, type_text
from coterie.core.protocols import Batch, Member, Plan, Team
from coterie.core.rollout.contracts import FRAMEWORK_METRICS
from coterie.core.types import TEAM, Credit, Key
from coterie.testing.support.failure import finite, guarded, require, require_kind
from coterie.testing.support.forest import PLANS, SyntheticStep, grow, order, reward_weights
from coterie.testing.support.kept_state import twice
from coterie.testing.support.promises import promise
from coterie.testing.support.toys import EchoRole, SilentTransition
from coterie.testing.support.values import fingerprint

ANNOTATIONS = ("ref_logprobs", "old_logprobs", "values", "teacher_logprobs")


def check_estimator(
    estimator: Any, *, plans: Sequence[Plan] = PLANS, seeds: int = 3, keeps: Sequence[str] = ()
) -> None:
    """Check an advantage estimator on synthetic trees, for every sampling plan that it accepts.

    The trees have two roles, chains that end early, branches whose scores are missing, calls that a system
    fault lost, groups that these leave with one member or none, and (separately) rewards that are all equal.

    - `check` accepts a plan or raises ConfigError; at least one plan is accepted, and gives credit.
    - Advantages, weights, targets, returns and metrics are finite; a per-token one has one value a sampled
      token; weights aren't negative.
    - Only existing branches have credit, and only those that have scores and whose call was not lost.
    - The order of the trees changes nothing.
    - The estimator leaves trees, scores and the given state unchanged. The state that it returns is plain
      JSON, and gives the same credit after a round trip through JSON (a resumed run).
    - It warns of attributes that change each time the same step is credited.

    Args:
        plans: sampling plans to try.
        seeds: number of forests of each kind for each plan.
        keeps: attributes that may change while it works, on purpose.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(estimator, "estimator")
    unknown = [need for need in estimator.needs if need not in ANNOTATIONS]
    require(
        not unknown, f"unknown annotations {unknown}", f"{name}.needs", fix=f"of {', '.join(ANNOTATIONS)}"
    )
    for component, weight in dict(estimator.weights).items():
        require(finite(weight), f"'{component}' weighs {weight!r}", f"{name}.weights", fix="a number")
    promise("it accepts a sampling plan, or raises ConfigError")
    accepted = [plan for plan in plans if _accepts(estimator, plan, name)]
    require(
        accepted,
        "refuses every sampling plan that was tried",
        f"{name}.check",
        fix="call check_estimator with plans=[...] that the estimator accepts",
    )
    credited = 0
    for plan in accepted:
        for seed in range(seeds):
            for flat in (False, True):
                credited += _check_on(estimator, grow(plan, seed, flat=flat), name, seed)
        credited += _check_on(estimator, grow(plan, seeds, gaps=False), name, seeds)
    require(
        credited,
        "gave no branch any credit",
        name,
        fix="return an advantage for each scored branch: a branch without one is not trained",
    )
    forest = grow(accepted[0], 0)
    for _ in twice(estimator, keeps, "check_estimator"):
        _credit(estimator, forest, name, None)


def _accepts(estimator: Any, plan: Plan, name: str) -> bool:
    team = Team(
        members={role: Member(role=EchoRole(), policy="policy") for role in ("planner", "executor")},
        order=order(plan),
        max_turns=3,
        transition=SilentTransition(),
    )
    with guarded(f"{name}.check", "raise ConfigError for a plan that the estimator is not defined for"):
        try:
            estimator.check(plan, team)
        except ConfigError:
            return False
    return True


def _check_on(estimator: Any, forest: SyntheticStep, name: str, seed: int) -> int:
    """Check one step; return the number of branches with credit."""
    promise("credit is finite, and of branches that were played and scored")
    mark = fingerprint((forest.trees, list(forest.scores)))
    credit, state = _credit(estimator, forest, name, None)
    same = fingerprint((forest.trees, list(forest.scores))) == mark
    require(same, "changed the trees or the scores", name, fix="they are values")
    _check_credit(credit, forest, name)

    promise("the order of the trees changes nothing")
    shuffled = SyntheticStep(list(forest.trees), forest.scores, forest.tokens, forest.missing)
    np.random.default_rng(seed).shuffle(shuffled.trees)  # type: ignore[arg-type]
    _same(
        credit, _credit(estimator, shuffled, name, None)[0], name, "the order of the trees changes the credit"
    )

    promise("all that it keeps is the state that it returns, plain JSON")
    with guarded(f"{name}: its state", "plain JSON: numbers, texts, lists, tables with text keys"):
        restored = json.loads(json.dumps(state, allow_nan=False))
    key = next(_other_keys(state), None)
    require(
        key is None,
        f"has the key {key!r}, which JSON makes {json.dumps({key: 0})[1:-4]}",
        f"{name}: its state",
        fix="texts as keys, such as str(key): a resumed run gets the state back from JSON",
    )
    again, again_state = _credit(estimator, forest, name, None)
    _same(credit, again, name, "two calls on one step, both without a state, give other credit")
    require(
        fingerprint(again_state) == fingerprint(state),
        "two calls on one step, both without a state, return other states",
        name,
        fix="keep nothing on `self`: the state that is returned is all that a checkpoint has",
    )
    before = copy.deepcopy(state)
    next_credit, _ = _credit(estimator, forest, name, state)
    require(
        fingerprint(before) == fingerprint(state), "changed the state that it was given", name, fix="copy it"
    )
    _check_credit(next_credit, forest, name)
    _same(
        next_credit,
        _credit(estimator, forest, name, restored)[0],
        name,
        "a state that was saved as JSON and read back gives other credit",
    )
    return len(credit.advantage)


def _other_keys(value: Any) -> Iterator[Any]:
    """Keys of a value that are no texts, which JSON writes as texts."""
    if isinstance(value, dict):
        yield from (key for key in value if not isinstance(key, str))
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    for part in parts:
        yield from _other_keys(part)


def _credit(estimator: Any, forest: SyntheticStep, name: str, state: Any) -> tuple[Credit, Any]:
    team_weight = float(estimator.weights.get(TEAM, 1.0))
    overrides = {component: weight for component, weight in estimator.weights.items() if component != TEAM}
    annotations = forest.annotations(tuple(estimator.needs))
    with guarded(name):
        answer = estimator(
            Batch(
                trees=forest.trees,
                scores=forest.scores,
                annotations=annotations,
                reward_weights=reward_weights(team_weight, overrides),
            ),
            state,
        )
    pair = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], Credit)
    parts = f" of {' and '.join(map(type_text, answer))}" if isinstance(answer, tuple) else ""
    require(pair, f"returned {type_text(answer)}{parts}", name, fix="(Credit, state)")
    return answer


def _check_credit(credit: Credit, forest: SyntheticStep, name: str) -> None:
    for table in ("advantage", "weight", "target", "returns"):
        values = getattr(credit, table)
        _require_table(values, f"{name}: {table}", "a table: {node.key.of_branch(role, b): value}")
        for key, value in values.items():
            known = isinstance(key, Key) and key in forest.tokens
            where = f"{name}: {table} of {key.text() if isinstance(key, Key) else repr(key)}"
            require(known, "there is no such branch", where, fix="node.key.of_branch(role, b)")
            require(_is_finite(value), f"is {value}", where, fix="leave the key out instead")
            count = forest.tokens[key]
            require(
                (np.ndim(value) == 0 and table != "target") or np.shape(value) == (count,),
                f"has shape {np.shape(value)} for {count} sampled tokens",
                where,
                fix="one number, or one a token",
            )
            require(table != "weight" or value >= 0, f"is {value}", where, fix="a weight is not negative")
    for key in credit.advantage:
        require(
            key not in forest.missing,
            f"{key.text()} has credit, and its scores are missing",
            name,
            fix="leave the branch out of the credit, of the baseline and of every denominator; 0 is a score",
        )
    _require_table(credit.metrics, f"{name}: metrics", "a table: numbers by name")
    for metric, number in credit.metrics.items():
        require(
            isinstance(metric, str) and metric.partition("/")[0] not in FRAMEWORK_METRICS,
            "is a name of the framework's",
            f"{name}: metric {metric!r}",
            fix="begin it with the estimator's own name",
        )
        require(finite(number), f"{number!r}", f"{name}: metric {metric}", fix="a finite number")


def _require_table(value: object, where: str, fix: str) -> None:
    """Raise unless the value is a table."""
    require(isinstance(value, Mapping), f"is {type_text(value)}", where, fix=fix)


def _is_finite(value: Any) -> bool:
    """Whether a value is a finite number, or an array of them."""
    try:
        return bool(np.isfinite(value).all())
    except TypeError:
        return False


def _same(first: Credit, second: Credit, name: str, difference: str) -> None:
    for table in ("advantage", "weight", "target"):
        values, others = getattr(first, table), getattr(second, table)
        equal = values.keys() == others.keys() and all(
            np.allclose(values[key], others[key], rtol=1e-7, atol=1e-9) for key in values
        )
        require(
            equal,
            difference,
            f"{name}: {table}",
            fix="keep nothing between calls except the state; sort by key",
        )
