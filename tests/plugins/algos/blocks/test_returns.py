"""What an action or a chain is worth to a role, against numbers worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from coterie.core.protocols import Batch
from coterie.core.types import TEAM, RewardWeights, Score
from coterie.plugins.algos.blocks.returns import (
    Horizon,
    episode,
    episode_return,
    gain,
    immediate,
    lost_chains,
    token_counts,
    tree_return,
)
from coterie.testing.support.trees import Forest, J, chain, place

REWARD_WEIGHTS = RewardWeights(
    kinds={"potential": "potential", "own_potential": "potential", "fork": "counterfactual"}
)
PLAIN = Horizon()
PAIR = (("one", "two"),)
SEQUENTIAL = (("one",), ("two",))
potentials = st.floats(0, 1)


def worth(rows, forest, horizon=PLAIN):
    """[(role, value, the branches it credits)]"""
    batch = Batch(trees=forest.trees, scores=forest.scores, annotations={}, reward_weights=REWARD_WEIGHTS)
    return [(row.role, row.value, [place(key) for key in row.branches]) for row in rows(batch, horizon)]


def path_of(*joints, order=(("one",),)):
    forest = Forest(order=order).grow(chain(*joints))
    (path,) = [*forest.trees[0].chains(), *lost_chains(forest.trees[0])]
    return path, forest.scores


# --------------------------------------------------------------------------------------------- a path


def test_increments_add_up_and_potentials_telescope():
    path, scores = path_of(J(1, potential=0.2), J(0, potential=0.5), J(2, potential=0.5))
    assert episode_return(path, "one", scores, REWARD_WEIGHTS) == pytest.approx(3.0 + 0.5)


def test_a_path_is_discounted_from_its_first_turn_turn_by_turn():
    path, scores = path_of(1, 2, 4, 8, order=SEQUENTIAL)
    assert episode_return(path, "one", scores, REWARD_WEIGHTS, Horizon(gamma=0.5)) == 1 + 2 + 0.5 * (4 + 8)


@given(st.lists(potentials, min_size=1, max_size=8))
def test_staying_unsolved_never_pays_and_early_success_is_never_punished(before):
    path, scores = path_of(*(J(potential=potential) for potential in [*before, 1.0]))
    early, early_scores = path_of(J(potential=1.0))
    unsolved, unsolved_scores = path_of(*[J(potential=0.5)] * 9)
    assert episode_return(path, "one", scores, REWARD_WEIGHTS) == pytest.approx(1.0, abs=1e-12)
    assert episode_return(early, "one", early_scores, REWARD_WEIGHTS) == 1.0
    assert episode_return(unsolved, "one", unsolved_scores, REWARD_WEIGHTS) == 0.5


def test_weights_and_alpha_scale_potentials_and_increments_alike():
    path, scores = path_of(J(2, potential=0.5, role_gain={"one": 3.0}), J(1, potential=1.0))
    reward_weights = RewardWeights(
        weights={"gain": 0.5, "potential": 10.0}, team_weight=0.1, kinds=REWARD_WEIGHTS.kinds
    )
    # alpha * (half of the gains + ten times the last potential) + the role's own
    assert episode_return(path, "one", scores, reward_weights) == pytest.approx(0.1 * (1.5 + 10) + 3)


def test_a_role_is_not_paid_what_is_anothers_own():
    path, scores = path_of(J(1, role_gain={"one": 0.5, "two": 7.0}), order=PAIR)
    assert episode_return(path, "one", scores, REWARD_WEIGHTS) == 1.5


def test_a_counterfactual_is_in_no_sum():
    path, scores = path_of(J(1, potential=0, fork=9.0))
    assert episode_return(path, "one", scores, REWARD_WEIGHTS) == 1.0
    assert REWARD_WEIGHTS.reward(scores.at(path[0][0].key.of_joint(0)), "one") == 10.0


def test_a_missing_part_makes_the_return_missing_unless_it_weighs_nothing():
    path, scores = path_of(J(1, potential=None))
    assert episode_return(path, "one", scores, REWARD_WEIGHTS) is None
    assert (
        episode_return(
            path, "one", scores, RewardWeights(weights={"potential": 0.0}, kinds=REWARD_WEIGHTS.kinds)
        )
        == 1.0
    )


# -------------------------------------------------------------------------------- potentials that are missing


def gains(role, *joints, fill="difference", order=(("one",),), also=()):
    """What each joint of a path pays; `also` are (place on the path, component, value) of a failed source."""
    path, scores = path_of(*joints, order=order)
    for at, component, value in also:
        scores.add(path[at][0].key.of_joint(0), TEAM, component, Score(value, "503", "judge", whole=True))
    gained, before = [], {}
    for node, index in path:
        paid, before = gain(node, index, role, scores, REWARD_WEIGHTS, before, fill)
        gained.append(paid)
    return gained


def test_a_potential_after_a_missing_one_pays_an_unknown_difference():
    joints = [J(potential=0.25), J(potential=None), J(potential=0.75), J(potential=1.0)]
    assert gains("one", *joints) == [0.25, None, None, 0.25]
    assert gains("one", *joints, fill="repeat") == [0.25, None, 0.75, 1.0]


def test_a_source_that_failed_as_a_whole_makes_its_roles_potentials_unknown():
    """It can't say whose its components would have been, so it says team."""
    own = {"one": 0.25}, {"one": 0.75}, {"one": 1.0}
    joints = [J(role_potential=own[0]), J(0), J(role_potential=own[1]), J(role_potential=own[2])]
    assert gains("one", *joints, also=[(1, "own_potential", None)]) == [0.25, None, None, 0.25]


def test_a_floor_of_a_source_that_names_its_owners_replaces_the_roles_potentials_too():
    """Else hanging the verifier (0) would beat being wrong (-.75)."""
    rising = [J(role_potential={"one": 0.75}), J(0), J(role_potential={"one": 1.0})]
    for floor in (0.0, -1.0, 0.5):
        paid = gains("one", *rising, also=[(1, "own_potential", floor)])
        assert paid == [0.75, floor - 0.75, 1.0 - floor] and sum(paid) == 1.0
        assert gains("one", *rising, also=[(1, "own_potential", floor)], fill="repeat") == [0.75, floor, 1.0]


def test_and_the_teams():
    joints = [J(potential=0.5, role_potential={"one": 0.75}), J(0), J(potential=1.0)]
    assert gains("one", *joints, also=[(1, "potential", 0.25), (1, "own_potential", 0.0)]) == [
        1.25,
        -1.0,
        0.75,
    ]
    assert gains("two", *joints, also=[(1, "potential", 0.25)]) == [0.5, -0.25, 0.75]


def test_a_lost_score_leaves_each_owners_potential_unknown_until_it_is_scored_itself():
    """The team's is known again in turn 2, and the role's own only after its next score."""
    joints = [
        J(potential=0.5, role_potential={"one": 0.25}),
        J(0),
        J(potential=0.75),
        J(role_potential={"one": 0.5}),
        J(potential=1.0, role_potential={"one": 0.75}),
    ]
    lost = [(1, "potential", None), (1, "own_potential", None)]
    assert gains("one", *joints, also=lost) == [0.75, None, None, None, 0.5]
    path, scores = path_of(J(0), J(0), J(0), J(0))
    same = [("one", 0.25), (TEAM, 0.5), ("one", 0.5), ("one", 0.75)]  # of one component
    scores.add(path[0][0].key.of_joint(0), TEAM, "potential", Score(None, "503", "judge", whole=True))
    paid, before = [], {}
    for (node, index), (owner, value) in zip(path, same, strict=True):
        if node is not path[0][0]:
            scores.add(node.key.of_joint(index), owner, "potential", Score(value))
        pay, before = gain(node, index, "one", scores, REWARD_WEIGHTS, before)
        paid.append(pay)
    assert paid == [None, None, None, 0.25]


@given(st.lists(st.sampled_from([0.25, 0.5, "floor", None]), min_size=1, max_size=6))
def test_on_every_path_what_is_paid_adds_up_to_the_last_potential(path):
    joints = [J(0) if value in ("floor", None) else J(role_potential={"one": value}) for value in path]
    failed = [(at, "own_potential", -0.5) for at, value in enumerate(path) if value == "floor"]
    paid = gains("one", *joints, also=failed)
    last = next((value for value in reversed(path) if value is not None), 0.0)
    assert sum(paid) == (-0.5 if last == "floor" else last)


def test_what_is_known_again_can_be_filled_up():
    forest = Forest().grow(chain(J(0), J(role_potential={"one": 0.75}), J(role_potential={"one": 1.0})))
    forest.scores.add(
        forest.trees[0].root.key.of_joint(0), TEAM, "own_potential", Score(None, "503", "judge", whole=True)
    )
    rows = worth(tree_return, forest, Horizon(fill="repeat", max_turns=4))
    assert [value for _, value, _ in rows] == [None, 0.75 + 1.0 + 1.0, 1.0 + 1.0]


def test_what_was_never_scored_starts_at_0_and_a_gap_is_no_change():
    assert gains("one", J(0), J(potential=0.5), J(1), J(potential=0.75)) == [0.0, 0.5, 1.0, 0.25]


def test_a_filled_up_episode_is_missing_where_its_last_potential_is():
    horizon = Horizon(fill="repeat", max_turns=3)
    known, scores = path_of(J(potential=0.5), J(1))
    assert episode_return(known, "one", scores, REWARD_WEIGHTS, horizon) == 0.5 + 1 + 0.5
    unknown, scores = path_of(J(1), J(1))
    scores.add(unknown[1][0].key.of_joint(0), TEAM, "potential", Score(None, "503"))
    assert episode_return(unknown, "one", scores, REWARD_WEIGHTS, horizon) is None


def test_an_unknown_last_potential_fills_nothing_up_and_is_no_0():
    """The last joint action pays a known 1, but what would be repeated after it is not known."""
    forest = Forest().grow(chain(J(potential=None), J(1)), chain(J(potential=0.5), J(1)))
    rows = worth(tree_return, forest, Horizon(fill="repeat", max_turns=3))
    assert [value for _, value, _ in rows] == [None, None, 0.5 + 1 + 0.5, 1 + 0.5]
    # Without a turn that remains, nothing is filled up.
    rows = worth(tree_return, forest, Horizon(fill="repeat", max_turns=2))
    assert [value for _, value, _ in rows] == [None, 1, 1.5, 1]


# ----------------------------------------------------------------------------------------------- rows


def test_immediate_looks_at_the_action_alone():
    forest = Forest().grow([J(1, [J(100)], role_gain={"one": 0.5}), J(2), J(lost=True)])
    assert worth(immediate, forest) == [
        ("one", 1.5, ["0:one0"]),
        ("one", 2.0, ["0:one1"]),
        ("one", None, ["0:one2"]),
        ("one", 100.0, ["0.0:one0"]),
    ]


@pytest.mark.parametrize("rows", [immediate, tree_return, episode])
@pytest.mark.parametrize("lost", [J(None), J(lost=["two"]), J(1, [J(None)] * 4)])
def test_a_missing_joint_action_of_a_cross_makes_its_branches_missing_in_every_return(rows, lost):
    """The other joint actions of `one0` met another partner: their mean would be unfair to `one1`."""
    forest = Forest(order=PAIR, pairing="cross", rule="all").grow([J(0), lost, J(4), J(6)])
    if rows is immediate and lost.then:
        return  # what follows is no part of it
    at_root = {at: value for _, value, places in worth(rows, forest) for at in places if "." not in at}
    assert at_root["0:one0"] is None and at_root["0:two1"] is None
    if rows is not episode:  # there a row is a path
        assert at_root["0:one1"] == 5.0 and at_root["0:two0"] == 2.0


def test_a_mean_over_children_leaves_missing_ones_out():
    """Else one lost leaf would take all its ancestors along."""
    forest = Forest().grow([J(1, [J(2), J(lost=True)]), J(lost=True), J(5)])
    assert [value for _, value, _ in worth(tree_return, forest)] == [3.0, None, 5.0, 2.0, None]


def test_an_episode_credits_all_that_the_role_did_on_it():
    forest = Forest(order=SEQUENTIAL).grow(chain(1, 2, 3), chain(5))
    assert worth(episode, forest) == [
        ("one", 6.0, ["0:one0", "0.0.0:one0"]),
        ("two", 6.0, ["0.0:two0"]),
        ("one", 5.0, ["1:one0"]),
    ]


@pytest.mark.parametrize("rows", [immediate, tree_return, episode])
def test_a_call_that_the_engine_lost_is_worth_nothing_known_whatever_was_scored(rows):
    forest = Forest(aborted=["0:one1", "1:one0"]).grow([J(1), J(2)], [J(3)])
    by_branch = {keys[0]: value for _, value, keys in worth(rows, forest)}
    assert by_branch == {"0:one0": 1.0, "0:one1": None, "1:one0": None}


def test_every_path_of_a_tree_is_an_episode():
    forest = Forest().grow([J(1, [J(2), J(3)]), J(4)])
    assert sorted(worth(episode, forest)) == [
        ("one", 3.0, ["0:one0", "0.0:one0"]),
        ("one", 4.0, ["0:one0", "0.0:one1"]),
        ("one", 4.0, ["0:one1"]),
    ]


def test_a_path_that_a_fault_ended_is_a_missing_row_for_all_who_had_acted():
    forest = Forest(order=SEQUENTIAL).grow(chain(1, J(lost=True)), [J(lost=True)])
    assert worth(episode, forest) == [
        ("one", None, ["0:one0"]),
        ("two", None, ["0.0:two0"]),
        ("one", None, ["1:one0"]),
    ]


def test_lost_chains_are_those_that_did_not_come_to_their_end():
    forest = Forest().grow([J(1, [J(2), J(lost=True)]), J(lost=True), J(5)])
    (tree,) = forest.trees
    assert sorted([index for _, index in path] for path in lost_chains(tree)) == [[0, 1], [1]]
    assert len(list(tree.chains())) == 2


def test_tree_rows_come_parents_first_and_role_by_role():
    forest = Forest(order=PAIR).grow([J(1, [J(2), J(4)]), J(3)])
    assert worth(tree_return, forest, Horizon(gamma=0.5)) == [
        (role, value, [f"{at}:{role}{branch}"])
        for role in ("one", "two")
        for at, branch, value in (("0", 0, 2.5), ("0", 1, 3.0), ("0.0", 0, 2.0), ("0.0", 1, 4.0))
    ]


def test_a_joint_all_of_whose_children_are_missing_is_missing():
    forest = Forest().grow([J(1, [J(None), J(lost=True)]), J(1, [J(None), J(5)])])
    by_branch = {keys[0]: value for _, value, keys in worth(tree_return, forest)}
    assert by_branch == {
        "0:one0": None,
        "0:one1": 6.0,
        "0.0:one0": None,
        "0.0:one1": None,
        "0.1:one0": None,
        "0.1:one1": 5.0,
    }


def test_below_a_missing_potential_siblings_wait_until_it_is_known_again():
    forest = Forest().grow(
        [J(potential=None, then=[J(potential=0.5, then=[J(potential=0.75)]), J(potential=1.0)])]
    )
    by_branch = {keys[0]: value for _, value, keys in worth(tree_return, forest)}
    assert by_branch == {"0:one0": None, "0.0:one0": None, "0.0:one1": None, "0.0.0:one0": 0.25}


def test_a_recombined_joint_leads_on_and_is_in_no_return():
    forest = Forest(order=PAIR).grow([J(0), J(2), J(9, [J(1), J(3)], recombined={"one": 0, "two": 1})])
    by_branch = {keys[0]: value for _, value, keys in worth(tree_return, forest)}
    assert [by_branch[f"0:{at}"] for at in ("one0", "one1", "two0", "two1")] == [0, 2, 0, 2]
    assert [by_branch[f"0.2:{at}"] for at in ("one0", "one1")] == [1, 3]
    assert [value for _, value, _ in worth(immediate, forest)] == [0, 2, 0, 2, 1, 3, 1, 3]


def test_a_rows_turn_is_that_of_its_first_branch():
    forest = Forest(order=SEQUENTIAL).grow(chain(1, 2, 3, 4))
    batch = Batch(trees=forest.trees, scores=forest.scores, annotations={}, reward_weights=REWARD_WEIGHTS)
    assert [(row.role, row.turn) for row in immediate(batch)] == [
        ("one", 0),
        ("two", 0),
        ("one", 1),
        ("two", 1),
    ]
    assert [(row.role, row.turn) for row in episode(batch)] == [("one", 0), ("two", 0)]


def test_tokens_are_counted_by_branch():
    forest = Forest(logprobs={"0:one0": (-1.0,) * 3}).grow([J(1), J(2), J(lost=True)])
    assert {place(key): count for key, count in token_counts(forest.trees).items()} == {
        "0:one0": 3,
        "0:one1": 1,
        "0:one2": 0,
    }
