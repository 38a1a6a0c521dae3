"""MAGRPO and its relations: trees of joint actions, their returns and weights, by hand and played out."""

from __future__ import annotations

import itertools

import pytest

from coterie.core.errors import ConfigError
from coterie.core.protocols import Batch
from coterie.testing import coterie_run, play_episode
from coterie.testing.support.trees import Forest, J, places
from tests.plugins.algos.support import CROSS, TREES, advantages, credit, estimator

PAIR = (("one", "two"),)


def two_turns() -> Forest:
    """Two roles at once, two joints a node, the second ended its episode early; gamma is 1/2.

    Joint 0 pays 1 and leads to joints that pay 2 and 6, joint 1 pays 4 and is over:
    R_00 = 2, R_01 = 6, R_0 = 1 + (2 + 6)/2 * 1/2 = 3, R_1 = 4. `one` has .5 of its own on branch 0.
    """
    return Forest(order=PAIR).grow([J(1, [J(2), J(6)], role_gain={"one": 0.5}), J(4)])


BY_HAND = {
    # name: root branches of one (returns 3.5, 4) and two (3, 4), then the next turn's (2, 6)
    "magrpo": ([-0.25, 0.25], [-0.5, 0.5], [-2, 2]),
    "marloo": ([-0.5, 0.5], [-1, 1], [-4, 4]),
    "mareinforce": ([3.5, 4], [3, 4], [2, 6]),
    "maremax": ([-0.5, 0], [-1, 0], [-4, 0]),
}


@pytest.mark.parametrize("name", TREES)
def test_a_joint_is_worth_its_pay_and_the_mean_of_what_follows(name):
    advantage = advantages(name, two_turns(), gamma=0.5)
    one, two, later = BY_HAND[name]
    assert [advantage["0:one0"], advantage["0:one1"]] == pytest.approx(one)
    assert [advantage["0:two0"], advantage["0:two1"]] == pytest.approx(two)
    for role in ("one", "two"):
        assert [advantage[f"0.0:{role}0"], advantage[f"0.0:{role}1"]] == pytest.approx(later)
    assert len(advantage) == 8


@pytest.mark.parametrize("name", TREES)
def test_in_a_cross_a_branch_is_worth_the_mean_of_the_joints_that_hold_it(name):
    # Joint (one, two): 00 pays 0, 01 pays 2, 10 pays 4, 11 pays 10. one: 1, 7; two: 2, 6.
    forest = Forest(order=PAIR, pairing="cross").grow([J(0), J(2), J(4), J(10)])
    wanted = {
        "magrpo": [-3, 3, -2, 2],
        "marloo": [-6, 6, -4, 4],
        "mareinforce": [1, 7, 2, 6],
        "maremax": [-6, 0, -4, 0],
    }[name]
    advantage = advantages(name, forest, plan=CROSS)
    assert [advantage[at] for at in ("0:one0", "0:one1", "0:two0", "0:two1")] == pytest.approx(wanted)


def test_a_cross_is_credited_after_what_its_joints_led_to():
    # 00 pays 0 and leads to pays of 0, 4, 0, 4 (mean 2); 01 pays 2, 10 pays 4, 11 pays 6: one 2, 5; two 3, 4.
    forest = Forest(order=PAIR, pairing="cross").grow([J(0, [J(0), J(4), J(0), J(4)]), J(2), J(4), J(6)])
    advantage = advantages("magrpo", forest, plan=CROSS)
    assert [advantage["0:one0"], advantage["0:one1"]] == [-1.5, 1.5]
    assert [advantage["0:two0"], advantage["0:two1"]] == [-0.5, 0.5]
    # Below it only the second role's action mattered: 0, 4 whatever the first did.
    assert [advantage[f"0.0:{at}"] for at in ("one0", "one1", "two0", "two1")] == [0, 0, -2, 2]


def test_stages_of_one_turn_are_not_discounted_against_each_other():
    forest = Forest(order=(("one",), ("two",))).grow([J(0, [J(2, [J(8), J(0)]), J(4)]), J(1)])
    returns = places(credit(estimator("magrpo", forest=forest, gamma=0.5), forest).returns)
    assert returns["0.0.0:one0"] == 8
    assert returns["0.0:two0"] == 2 + 0.5 * (8 + 0) / 2  # the next turn's
    assert returns["0:one0"] == 0 + (4 + 4) / 2  # the same turn's
    assert returns["0:one1"] == 1


def test_an_early_end_is_a_leaf_and_not_left_out():
    # R_0 = 0 + (5 + 7)/2, R_1 = 5 at once: mean 5.5; groups are of unequal size and depth.
    forest = Forest().grow([J(0, [J(5), J(1, [J(6), J(6), J(6)])]), J(5)])
    advantage = advantages("magrpo", forest)
    assert [advantage["0:one0"], advantage["0:one1"]] == [0.5, -0.5]
    assert [advantage["0.0:one0"], advantage["0.0:one1"]] == [-1, 1]
    assert [advantage[f"0.0.1:one{b}"] for b in range(3)] == [0, 0, 0]


def test_repeated_potentials_are_paid_every_turn_and_after_an_early_end():
    # gamma 1/2, three turns. Stopping at .8 is paid .8 (1 + 1/2 + 1/4) = 1.4; going on from .4 to .6 to .6
    # is paid .4 + .3 + .15 = .85.
    forest = Forest().grow(
        [J(potential=0.8), J(potential=0.4, then=[J(potential=0.6, then=[J(potential=0.6)])])]
    )
    settings = {"forest": forest, "turns": 3, "gamma": 0.5, "fill": "repeat"}
    returns = places(credit(estimator("mareinforce", **settings), forest).returns)
    assert returns == pytest.approx({"0:one0": 1.4, "0:one1": 0.85, "0.1:one0": 0.9, "0.1.0:one0": 0.6})


# ------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("name", TREES)
def test_a_branch_weighs_its_turns_weight_over_the_turns_branches(name):
    full = [J(0, [J(0), J(1)]), J(1, [J(2), J(0), J(1)])]
    forest = Forest().grow(full)
    result = credit(estimator(name, forest=forest, turns=2, turn_weights=[1.2, 0.8]), forest)
    weight = places(result.weight)
    assert weight == pytest.approx(
        {"0:one0": 0.6, "0:one1": 0.6, **{f"0.0:one{b}": 0.16 for b in (0, 1)}}
        | {f"0.1:one{b}": 0.16 for b in (0, 1, 2)}
    )
    assert sum(weight.values()) == pytest.approx(2.0)


def test_without_weights_every_turn_counts_the_same():
    forest = Forest().grow([J(0, [J(0), J(1)]), J(1)])
    result = credit(estimator("magrpo", forest=forest), forest)
    assert places(result.weight) == {"0:one0": 0.5, "0:one1": 0.5, "0.0:one0": 0.5, "0.0:one1": 0.5}


def test_trees_and_roles_have_weights_of_their_own():
    forest = Forest(order=(("one",), ("two",))).grow([J(0, [J(1), J(0), J(2)]), J(3)], [J(1), J(0)])
    weight = places(credit(estimator("magrpo", forest=forest), forest).weight)
    assert [weight[at] for at in ("0:one0", "0.0:two0", "1:one1")] == pytest.approx([1 / 2, 1 / 3, 1 / 2])


def test_a_branch_without_credit_weighs_nothing_and_is_not_counted():
    forest = Forest().grow([J(0), J(2), J(None), J(lost=True)])
    result = credit(estimator("magrpo", forest=forest), forest)
    assert places(result.weight) == {"0:one0": 0.5, "0:one1": 0.5}


@pytest.mark.parametrize("weights", [[1.0], [1.0, 1.0, 1.0], [-1.0, 2.0], [0.0, 0.0], [float("inf"), 1.0]])
def test_turn_weights_must_fit_the_turns(weights):
    with pytest.raises(ConfigError, match=r"turn.weights") as error:
        estimator("magrpo", turns=2, turn_weights=weights)
    assert error.value.path == "algorithm.turn_weights" and error.value.fix


def test_a_turn_may_weigh_nothing():
    estimator("magrpo", turns=2, turn_weights=[1.0, 0.0])


# ---------------------------------------------------------------------------------- played for real


@pytest.mark.parametrize("pairing", ["aligned", "cross"])
@pytest.mark.parametrize(
    ("order", "turns", "branches"),
    [
        (["one"], 3, 2),
        (["one", "two"], 2, 2),
        ([["one", "two"]], 2, 2),
        ([["one", "two"]], 1, 3),
        ([["one", "two"], "three"], 2, 2),
    ],
)
def test_the_leaves_of_a_played_tree(order, turns, branches, pairing):
    run = coterie_run(
        order=order,
        max_turns=turns,
        sampler={"branches": branches, "expand": "all", "pairing": pairing},
        algorithm={"type": "magrpo"},
    )
    (tree,), scores = play_episode(run)
    roles = sum(1 if isinstance(stage, str) else len(stage) for stage in order)
    exponent = (roles if pairing == "cross" else len(order)) * turns
    assert len(list(tree.leaves())) == branches**exponent
    result, _ = run.estimator(
        Batch(trees=[tree], scores=scores, annotations={}, reward_weights=run.reward_weights), None
    )
    every = sum(len(d.branches) for node in tree.nodes() for d in node.decisions.values())
    assert len(result.advantage) == every
    assert sum(result.weight.values()) == pytest.approx(roles * turns)


def test_a_played_cross_knows_what_each_role_added():
    """Branch b writes b: the team earns the sum and the writer a tenth, so an action is worth 1.1 b."""
    run = coterie_run(
        order=[["one", "two"]],
        max_turns=2,
        sampler={"branches": 2, "expand": "all", "pairing": "cross"},
        algorithm={"type": "magrpo"},
    )
    (tree,), scores = play_episode(run)
    result, _ = run.estimator(
        Batch(trees=[tree], scores=scores, annotations={}, reward_weights=run.reward_weights), None
    )
    for node, role in itertools.product(tree.nodes(), ("one", "two")):
        pair = [result.advantage[node.key.of_branch(role, branch)] for branch in (0, 1)]
        assert pair == pytest.approx([-0.55, 0.55])
