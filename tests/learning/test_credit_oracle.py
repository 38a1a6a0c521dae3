"""A hundred random configurations against the oracle, and the oracle against numbers worked out by hand."""

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
from coterie.core.types import TEAM, Action, Call, Decision, Fault, JointAction, Key, Node, Task, Tree
from tests.learning.credit_cases import ESTIMATORS, Allowed, Case, PlayedStep, draw, play
from tests.learning.credit_choices import wrong_choices
from tests.learning.credit_estimators import Expected, equal, expected
from tests.learning.credit_oracle import Book, played, rewards_of
from tests.learning.credit_sources import Answer, SourceSpec

pytestmark = pytest.mark.learning

CONFIGURATIONS = 100
TOLERANCE = 1e-9

# ----------------------------------------------------------------------------------- random configurations


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


def test_a_hundred_random_configurations_agree_with_the_oracle(capsys):
    logging.getLogger("coterie").setLevel(logging.ERROR)
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


# -------------------------------------------------------------------------------------- the oracle, by hand


@dataclass
class N:
    """A node: by role the texts of its branches; by combination of branches what came after it.

    None: the episode ended. "lost": a system fault.
    """

    texts: Mapping[str, Sequence[str]]
    then: Mapping[tuple[int, ...], Any]


def tree(root: N, chain: int = 0, logprobs: Sequence[float] = (-0.5,)) -> Tree:
    """A tree of one stage a turn."""

    def action(text: str) -> Action:
        ids = tuple(range(len(logprobs)))
        call = Call(prompt_ids=(1,), token_ids=ids, logprobs=tuple(logprobs), version=0, finish="stop")
        return Action(calls=(call,), text=text, parsed=text)

    def decision(role: str, texts: Sequence[str]) -> Decision:
        return Decision(
            role=role,
            policy="p",
            observation="",
            messages=(),
            prompt_ids=(1,),
            prompt_sha256="",
            branches=tuple(map(action, texts)),
        )

    def node(one: N, key: Key) -> Node:
        joints = tuple(
            JointAction(
                branches=dict(zip(one.texts, branches, strict=True)),
                state_digest="",
                child=node(after, key.child(index)) if isinstance(after, N) else None,
                fault=Fault(kind="system", reason="broke") if after == "lost" else None,
            )
            for index, (branches, after) in enumerate(one.then.items())
        )
        return Node(
            key=key,
            turn=len(key.path),
            stage=0,
            decisions={role: decision(role, texts) for role, texts in one.texts.items()},
            joints=joints,
            expanded=tuple(index for index, joint in enumerate(joints) if joint.fault is None),
        )

    return Tree(task=Task(id="t"), chain=chain, epoch=0, root=node(root, Key("t", 0, chain)))


def line(*texts: str) -> N:
    """One role's actions, one a turn."""
    after: Any = None
    for text in reversed(texts):
        after = N({"one": [text]}, {(0,): after})
    return after


def source(name: str, scope: str, kind: str, floor: float = 0.0) -> SourceSpec:
    return SourceSpec(name, 0, scope, {name: kind}, {name: 1.0}, floor=floor)


def voice(says: Mapping[str, Any]) -> Any:
    """What sources answer, by the texts of the view's last actions, joined with `+`.

    A number is the role's, where the source looks at a role's action, else the team's; a table is itself.
    """

    def answer(source: SourceSpec, task: str, turn: int, *texts: Any) -> Answer:
        said = says["+".join(text for _, text in texts[-1])]
        if isinstance(said, str):
            return Answer(said)
        if not isinstance(said, Mapping):
            said = {(texts[-1][0][0] if source.scope == "action" else TEAM): said}
        return Answer("", ({(owner, source.name): value for owner, value in said.items()},))

    return answer


def named(table: Mapping[Key, Any]) -> dict[str, Any]:
    """By chain, path, role and branch."""
    return {
        f"{'.'.join(map(str, (key.chain, *key.path)))}:{key.role}{key.branch}": value
        for key, value in table.items()
    }


def credit(algorithm: Any, trees: Sequence[Tree], sources: Any, says: Any, **more: Any) -> Expected:
    table = {"type": algorithm} if isinstance(algorithm, str) else algorithm
    return expected(table, trees, sources, **{"turns": 2, "voice": voice(says), **more})


TWO_TURNS = N(
    {"one": ["0", "1"]},
    {
        (0,): N({"one": ["2", "0"]}, {(0,): None, (1,): None}),
        (1,): N({"one": ["1", "1"]}, {(0,): None, (1,): None}),
    },
)
"""The example of docs/algorithms.md: an action's text is what it pays."""


@pytest.mark.parametrize(
    ("algorithm", "wanted"),
    [
        ("magrpo", (-0.5, 0.5, 1, -1, 0, 0)),
        ("marloo", (-1, 1, 2, -2, 0, 0)),
        ("mareinforce", (1, 2, 2, 0, 1, 1)),
        ("maremax", (-1, 0, 0, -2, 0, 0)),
    ],
)
def test_the_example_of_the_algorithms_page(algorithm, wanted):
    pays = {"0": 0.0, "1": 1.0, "2": 2.0}
    result = credit(algorithm, [tree(TWO_TURNS)], [source("pay", "joint", "increment")], pays)
    places = ("0:one0", "0:one1", "0.0:one0", "0.0:one1", "0.1:one0", "0.1:one1")
    assert named(result.advantage) == dict(zip(places, wanted, strict=True))
    assert [named(result.weight)[place] for place in places] == [0.5, 0.5, 0.25, 0.25, 0.25, 0.25]


def test_the_examples_immediate_credit():
    pays = {"0": 0.0, "1": 1.0, "2": 2.0}
    result = credit("at_grpo", [tree(TWO_TURNS)], [source("pay", "joint", "increment")], pays)
    scaled = 0.5 / (math.sqrt(0.5) + 1e-6)
    assert named(result.advantage)["0:one1"] == pytest.approx(scaled, abs=1e-12)
    assert named(result.advantage)["0:one0"] == pytest.approx(-scaled, abs=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.35, 1.0])
@pytest.mark.parametrize("second", ["wrong", "hangs"])
def test_a_floor_after_a_roles_potential_is_as_bad_as_a_wrong_answer(second, alpha):
    says = {"right": 0.8, "wrong": 0.0, "hangs": "floor"}
    algorithm = {"type": "reinforce", "alpha": alpha}
    result = credit(algorithm, [tree(line("right", second))], [source("s", "action", "potential")], says)
    assert named(result.advantage) == {"0:one0": 0.0, "0.0:one0": -0.8}


@pytest.mark.parametrize("scope", ["action", "joint", "episode"])
def test_a_lost_score_is_missing_though_the_teams_scores_count_nothing(scope):
    says = {"fine": 1.0, "down": "lost", "hangs": "floor"}
    trees = [tree(N({"one": ["fine", "down", "hangs"]}, {(0,): None, (1,): None, (2,): None}))]
    algorithm = {"type": "mareinforce", "alpha": 0.0}
    result = credit(algorithm, trees, [source("s", scope, "increment", floor=-1.0)], says)
    if scope == "action":
        assert named(result.advantage) == {"0:one0": 1.0, "0:one2": -1.0}
    else:
        assert named(result.advantage) == {"0:one0": 0.0, "0:one2": 0.0}


def test_a_joint_sources_floor_stands_for_all_owners_of_its_component():
    """Turn by turn with alpha .5: .8 + .5 * .2; -.5 in place of both; .3 + .5 * .4 in place of that; gone."""
    says = {
        "a": {"one": 0.8, TEAM: 0.2},
        "hangs": "floor",
        "b": {"one": 0.3, TEAM: 0.4},
        "c": {TEAM: 0.0},
        "down": "lost",
    }
    sources = [source("s", "joint", "potential", floor=-1.0)]

    def pays(*texts: str) -> list[float | None]:
        every = played([tree(line(*texts))], sources, voice(says))
        book = Book(sources, 0.5)
        return [book.pay(one, "one") for one in every]

    assert pays("a", "hangs", "b", "c") == pytest.approx([0.9, -1.4, 1.0, -0.2])
    assert pays("a", "hangs", "c") == pytest.approx([0.9, -1.4, 0.5])
    assert pays("a", "down", "b", "c") == [pytest.approx(0.9), None, None, pytest.approx(-0.2)]


CROSS = N(
    {"one": ["a", "b"], "two": ["x", "y"]},
    {(0, 0): None, (0, 1): "lost", (1, 0): None, (1, 1): None},
)


@pytest.mark.parametrize("algorithm", ["mareinforce", "of a role", "immediate", "episode"])
def test_a_joint_action_lost_under_cross_makes_its_branches_missing(algorithm):
    says = {"a+x": 1.0, "b+x": 2.0, "b+y": 4.0}
    tables = {
        "mareinforce": {"type": "mareinforce"},
        "of a role": {"type": "compose", "group": "role", "return": "tree", "baseline": "none"},
        "immediate": {"type": "compose", "group": "decision", "return": "immediate", "baseline": "none"},
        "episode": {"type": "compose", "group": "task", "return": "episode", "baseline": "none"},
    }
    table = {"normalise": {"type": "none"}, **tables[algorithm]}
    result = credit(table, [tree(CROSS)], [source("s", "joint", "increment")], says)
    assert named(result.advantage) == {"0:one1": 3.0, "0:two0": 1.5}


def test_equal_scores_are_centred_and_not_scaled_by_reinforce_pp():
    """Sums of the KL's pay to the end are -.03 and -.01 in one action, .05 and .03 in the other: mean .01."""
    trees = [tree(line(text), chain, (-1.0, -2.0)) for chain, text in enumerate("ab")]
    references = {
        Key("t", 0, 0, (), "one", 0): np.array([-3.0, -3.0]),
        Key("t", 0, 1, (), "one", 0): np.array([1.0, 1.0]),
    }
    sources = [source("s", "action", "increment")]
    result = credit("reinforce_pp", trees, sources, {"a": 0.5, "b": 0.5}, references=references)
    advantages = {place: list(values) for place, values in named(result.advantage).items()}
    assert advantages == {
        "0:one0": pytest.approx([-0.04, -0.02]),
        "1:one0": pytest.approx([0.04, 0.02]),
    }
    unequal = credit("reinforce_pp", trees, sources, {"a": 0.5, "b": 1.5}, references=references)
    values = np.array([0.47, 0.49, 1.55, 1.53])
    wanted = (values - values.mean()) / values.std()
    assert np.concatenate(list(unequal.advantage.values())) == pytest.approx(wanted)


def test_the_running_mean_before_the_step_is_subtracted():
    trees = [tree(line(text), chain) for chain, text in enumerate("ab")]
    sources = [source("s", "action", "increment")]
    algorithm = {"type": "rae", "decay": 0.5}
    result = credit(algorithm, trees, sources, {"a": 1.0, "b": 3.0}, state={"one": 0.5})
    assert named(result.advantage) == {"0:one0": 0.5, "1:one0": 2.5}
    assert result.state == {"one": 1.25}
