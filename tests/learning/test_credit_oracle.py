"""Two hundred random configurations against the oracle."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from coterie.core.errors import ConfigError
from coterie.core.types import Key
from tests.learning.credit_cases import ESTIMATORS, Allowed, Case, PlayedStep, draw, play
from tests.learning.credit_choices import wrong_choices
from tests.learning.credit_estimators import Expected, equal, expected
from tests.learning.credit_oracle import Book, played
from tests.learning.credit_rows import rewards_of

pytestmark = pytest.mark.learning

CONFIGURATIONS = 200
TOLERANCE = 1e-9


@dataclass
class Tally:
    """What was compared."""

    estimators: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    occurred: Counter[str] = field(default_factory=Counter)
    branches: int = 0
    largest: float = 0.0
    wrong: list[str] = field(default_factory=list)


def difference(wanted: Any, got: Any) -> float:
    """The largest difference of two numbers or arrays, relative to numbers above 1; inf: not alike."""
    if wanted is None or got is None:
        return 0.0 if wanted is got else math.inf
    one, other = np.atleast_1d(wanted).astype(float), np.atleast_1d(got).astype(float)
    if one.shape != other.shape or not (np.isfinite(one).all() and np.isfinite(other).all()):
        return math.inf
    return float(np.max(np.abs(one - other) / np.maximum(1.0, np.abs(one)), initial=0.0))


def compare(case: Case, step: PlayedStep, tally: Tally) -> None:
    """Hold the credit of a step against the oracle's."""
    wanted = expected(
        case.algorithm,
        step.trees,
        case.sources,
        turns=case.turns,
        references=step.references,
        values=step.values,
        state=step.before or {},
    )
    every = played(step.trees, case.sources)
    book = Book(case.sources, case.algorithm["alpha"])
    for text in wrong_choices(every, book, case.sampler):
        tally.wrong.append(f"seed {case.seed}: {text}\n  {case}")
    rewards = rewards_of(every, book)
    means = {f"reward/{role}": np.mean(values) for role, values in rewards.items() if values}
    reported = {name: v for name, v in step.metrics.items() if name.startswith("reward/") and v == v}
    weights = {key: step.credit.weight.get(key, 1.0) for key in step.credit.advantage}
    wanted_weights = {key: wanted.weight.get(key, 1.0) for key in wanted.advantage}
    tables: tuple[tuple[str, Mapping[Any, Any], Mapping[Any, Any]], ...] = (
        ("advantage", wanted.advantage, step.credit.advantage),
        ("weight", wanted_weights, weights),
        ("target", wanted.targets, step.credit.target),
        ("state", wanted.state, step.after or {}),
        ("mean reward", means, reported),
    )
    for what, ours, theirs in tables:
        for key in [*ours, *(key for key in theirs if key not in ours)]:
            apart = difference(ours.get(key), theirs.get(key))
            if apart < math.inf:
                tally.largest = max(tally.largest, apart)
            if not apart <= TOLERANCE:
                name = key.text() if isinstance(key, Key) else key
                tally.wrong.append(
                    f"seed {case.seed}: {what} of {name}: the oracle has {ours.get(key)}, "
                    f"the framework {theirs.get(key)}\n  {case}"
                )
    tally.branches += len({*wanted.advantage, *step.credit.advantage})
    _count(case, step, every, wanted, tally)


def _count(case: Case, step: PlayedStep, every: Sequence[Any], wanted: Expected, tally: Tally) -> None:
    """Count the things that the comparison is about."""
    occurred = tally.occurred
    scores = [
        score for one in every for score in [*one.joint_scores, *itertools.chain(*one.branch_scores.values())]
    ]
    actions = [a for one in every for role in one.branches for a in [one.action(role)]]
    occurred["rows missing"] += sum(row.value is None for row in wanted.rows)
    occurred["floors"] += sum(score.failure == "floor" for score in scores)
    occurred["whole floors"] += sum(score.failure == "floor" and score.whole for score in scores)
    occurred["floors of each role"] += sum(
        score.failure == "floor" and not score.whole for one in every for score in one.joint_scores
    )
    occurred["games brought down"] += sum(
        (fault := one.node.joints[one.index].fault) is not None and fault.kind == "policy" for one in every
    )
    occurred["scores missing"] += sum(score.value is None for score in scores)
    occurred["aborts"] += sum(not action.trainable for action in actions)
    occurred["cut off"] += sum(bool(a.calls) and a.calls[-1].finish == "length" for a in actions)
    occurred["actions of several calls"] += sum(len(action.calls) > 1 for action in actions)
    occurred["recombined"] += sum(not one.counts for one in every)
    occurred["cross"] += case.sampler.get("pairing") == "cross"
    occurred["cross with a lost joint action"] += case.sampler.get("pairing") == "cross" and any(
        one.faulty for one in every
    )
    occurred["frozen"] += bool(case.frozen)
    occurred["two epochs"] += len({tree.epoch for tree in step.trees}) > 1
    present = [row.value for row in wanted.rows if row.value is not None]
    occurred["equal scores of reinforce_pp"] += case.algorithm["type"] == "reinforce_pp" and equal(present)
    decisions: dict[Key, list[float]] = {}
    for row in wanted.rows:
        if row.value is not None:
            decisions.setdefault(row.branches[0].decision, []).append(row.value)
    occurred["ties"] += sum(len(values) > 1 and equal(values) for values in decisions.values())


async def compared(configurations: int, allowed: Allowed) -> Tally:
    """Draw, play and compare until so many legal configurations ran; a refused one is drawn again."""
    tally, seed = Tally(), 0
    for index in range(configurations):
        estimator = ESTIMATORS[index % len(ESTIMATORS)]
        while True:
            case, seed = draw(seed, estimator, allowed), seed + 1
            try:
                steps = await play(case)
            except ConfigError:
                tally.refused[estimator] += 1
                continue
            break
        tally.estimators[estimator] += 1
        for step in steps:
            compare(case, step, tally)
    return tally


def test_random_configurations_agree_with_the_oracle(capsys, caplog):
    caplog.set_level(logging.ERROR, logger="coterie")
    tally = asyncio.run(compared(CONFIGURATIONS, Allowed()))
    with capsys.disabled():
        print(
            f"\n{sum(tally.estimators.values())} configurations ({sum(tally.refused.values())} refused), "
            f"{tally.branches} branches, largest difference {tally.largest:.2g}; {dict(tally.occurred)}"
        )
    assert not tally.wrong, f"{len(tally.wrong)} differ, for example\n" + "\n".join(tally.wrong[:5])
    assert sum(tally.estimators.values()) == CONFIGURATIONS
    assert set(tally.estimators) == set(ESTIMATORS) and min(tally.estimators.values()) >= 5
    assert sum(tally.refused.values()) < CONFIGURATIONS
    assert tally.branches > 3000
    assert min(tally.occurred.values()) >= 5, tally.occurred
