"""The oracle itself, against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from coterie.core.types import TEAM, Action, Call, Decision, Fault, JointAction, Key, Node, Task, Tree
from tests.learning.credit_estimators import Expected, expected
from tests.learning.credit_oracle import Book, played
from tests.learning.credit_sources import Answer, SourceSpec

pytestmark = pytest.mark.learning


FAULTS = {"lost": Fault(kind="system", reason="lost"), "broken": Fault(kind="policy", reason="broken")}


@dataclass
class N:
    """A node: by role the texts of its branches; by combination of branches what came after it.

    None: the episode ended. "lost": a system fault. "broken": the output brought the game down.
    """

    texts: Mapping[str, Sequence[str]]
    then: Mapping[tuple[int, ...], Any]


def tree(root: N, chain: int = 0, logprobs: Sequence[float] = (-0.5,), frozen: str = "") -> Tree:
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
            trainable=role != frozen,
        )

    def node(one: N, key: Key) -> Node:
        joints = tuple(
            JointAction(
                branches=dict(zip(one.texts, branches, strict=True)),
                state_digest="",
                child=node(after, key.child(index)) if isinstance(after, N) else None,
                fault=FAULTS.get(after) if isinstance(after, str) else None,
            )
            for index, (branches, after) in enumerate(one.then.items())
        )
        return Node(
            key=key,
            turn=len(key.path),
            stage=0,
            decisions={role: decision(role, texts) for role, texts in one.texts.items()},
            joints=joints,
            expanded=tuple(index for index, joint in enumerate(joints) if not joint.lost),
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


def test_a_whole_floor_stands_for_a_role_until_one_of_its_scores_counts_again():
    """Between, others are scored: with alpha .5 the partner, with alpha 0 the team."""
    says = {
        "a": {"one": 0.8},
        "hangs": "floor",
        "other": {"two": 0.4},
        "teams": {TEAM: 0.4},
        "down": "lost",
        "b": {"one": 0.3},
    }
    sources = [source("s", "joint", "potential", floor=-1.0)]

    def pays(alpha: float, *texts: str) -> list[float | None]:
        every = played([tree(line(*texts))], sources, voice(says))
        book = Book(sources, alpha)
        return [book.pay(one, "one") for one in every]

    assert pays(0.5, "a", "hangs", "other", "b") == pytest.approx([0.8, -1.3, 0.0, 0.8])
    assert pays(0.0, "a", "hangs", "teams", "b") == pytest.approx([0.8, -0.8, 0.0, 0.3])
    assert pays(0.0, "a", "down", "teams", "b") == [0.8, None, 0.0, None]


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_a_floor_of_a_component_of_roles_is_each_roles_own(alpha):
    sources = [SourceSpec("s", 0, "joint", {"s": "potential"}, {"s": 1.0}, per_role=("s",), floor=-1.0)]
    says = {"a": {"one": 0.8}, "hangs": "floor", "b": {"one": 0.3}}
    every = played([tree(line("a", "hangs", "b"))], sources, voice(says))
    pays = [Book(sources, alpha).pay(one, "one") for one in every]
    assert pays == pytest.approx([0.8, -1.8, 1.3])


def test_a_game_that_the_output_brings_down_is_scored_by_the_floors_of_joint_sources():
    root = N({"one": ["a", "b", "c"]}, {(0,): None, (1,): "broken", (2,): "lost"})
    sources = [source("s", "joint", "increment", floor=-1.0), source("own", "action", "increment")]
    says = {"a": 2.0, "b": 0.5, "c": 7.0}
    result = credit({"type": "mareinforce", "alpha": 0.5}, [tree(root)], sources, says)
    assert named(result.advantage) == {"0:one0": 0.5 * 2.0 + 2.0, "0:one1": -0.5 + 0.5}


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


def test_a_frozen_partner_is_in_no_statistic():
    root = N({"one": ["a", "b"], "two": ["x", "y"]}, {(0, 0): None, (1, 1): None})
    normalise = {"type": "whiten", "scope": "global", "ddof": 0, "eps": 0.0}
    algorithm = {"type": "at_grpo", "normalise": normalise}
    says = {"a": 1.0, "b": 3.0, "x": 0.0, "y": 50.0}
    sources = [source("s", "action", "increment")]
    result = credit(algorithm, [tree(root, frozen="two")], sources, says)
    assert named(result.advantage) == {"0:one0": -1.0, "0:one1": 1.0}


@pytest.mark.parametrize(
    ("group", "wanted"), [("decision", [0.5, 0.7]), ("turn", [0.5, 0.2]), ("batch", [0.5, 0.2])]
)
def test_immediate_potentials_are_differences_where_groups_span_chains(group, wanted):
    algorithm = {"type": "compose", "group": group, "return": "immediate", "baseline": "none"}
    sources = [source("s", "action", "potential")]
    says = {"a": 0.5, "b": 0.7}
    result = credit({**algorithm, "normalise": {"type": "none"}}, [tree(line("a", "b"))], sources, says)
    assert list(result.advantage.values()) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("last", "wanted"), [(0.5, 0.2 + 0.5 * 0.5 + 0.25 * 0.5 + 0.125 * 0.5), (None, None)]
)
def test_repeat_goes_on_to_earn_the_last_potential_that_must_be_known(last, wanted):
    """Two turns of four: .2, then the last one, earned three times; or in the second turn nothing is said."""
    algorithm = {"type": "mareinforce", "gamma": 0.5, "fill": "repeat"}
    sources = [source("s", "joint", "potential")]
    result = credit(algorithm, [tree(line("a", "b"))], sources, {"a": 0.2, "b": last}, turns=4)
    assert named(result.advantage).get("0:one0") == (None if wanted is None else pytest.approx(wanted))
    silent = {"a": last, "b": {}}
    after = named(credit(algorithm, [tree(line("a", "b"))], sources, silent, turns=4).advantage)
    assert after.get("0.0:one0") == (None if last is None else pytest.approx(0.5 * 0.5 + 0.25 * 0.5))
