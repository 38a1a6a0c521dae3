"""The tree sampler: who is asked what, what is played, and what goes on."""

from __future__ import annotations

import collections

import pytest

from coterie.core.errors import CoterieError
from coterie.core.scoring import branch_rewards
from tests import games
from tests.games import play, run_of


def nodes(tree):
    return list(tree.nodes())


def test_siblings_share_prompt_and_state_and_the_best_goes_on():
    tree = play(run_of())[0][0]
    first, second = nodes(tree)
    assert [action.text for action in first.decisions["one"].branches] == ["0", "1", "2"]
    prompts = {call.prompt_ids for action in first.decisions["one"].branches for call in action.calls}
    assert prompts == {first.decisions["one"].prompt_ids}
    assert first.expanded == (2,) and first.rule == "best"
    assert second.key.path == (2,)


def test_commit_comes_between_stages_so_the_next_role_sees_it():
    tree = play(run_of())[0][0]
    second = nodes(tree)[1]
    assert second.decisions["two"].messages[0]["content"] == "two turn0 one=2"


def test_every_role_is_rewarded_on_its_own_branches():
    run = run_of()
    trees, scores = play(run)
    for node in trees[0].nodes():
        for role in node.decisions:
            assert branch_rewards(node, role, scores, run.mix) == pytest.approx([0, 1.1, 2.2])


def test_the_state_moves_on_over_turns():
    tree = play(run_of(max_turns=3))[0][0]
    last = nodes(tree)[-1]
    assert last.turn == 2 and last.decisions["two"].observation == "one=2 two=2 one=2 two=2 one=2"
    digests = [node.state_digest for node in tree.nodes()]
    assert len(set(digests)) == len(digests) == 6


def test_first_of_equals_is_committed():
    tree = play(run_of(play="tests.games:constant"))[0][0]
    assert all(node.expanded == (0,) for node in tree.nodes())


@pytest.mark.parametrize(
    ("order", "turns", "branches", "pairing", "leaves"),
    [
        (["one"], 1, 3, "aligned", 3),
        (["one", "two"], 2, 2, "aligned", 2 ** (2 * 2)),
        ([["one", "two"]], 2, 3, "aligned", 3**2),
        ([["one", "two"]], 2, 2, "cross", 2 ** (2 * 2)),
        ([["one", "two"], "three"], 1, 2, "cross", 2**3),
    ],
)
def test_expanding_all_grows_every_leaf(order, turns, branches, pairing, leaves):
    run = run_of(
        order=order, max_turns=turns, sampler={"branches": branches, "expand": "all", "pairing": pairing}
    )
    tree = play(run)[0][0]
    assert len(list(tree.leaves())) == leaves == len(list(tree.chains()))
    assert all(node.rule == "all" for node in tree.nodes())


def test_cross_pairs_every_branch_with_every_other():
    run = run_of(order=[["one", "two"]], sampler={"branches": 2, "pairing": "cross"})
    node = nodes(play(run)[0][0])[0]
    assert [dict(joint.pick) for joint in node.joints] == [
        {"one": 0, "two": 0},
        {"one": 0, "two": 1},
        {"one": 1, "two": 0},
        {"one": 1, "two": 1},
    ]


def test_in_a_cross_a_branch_is_worth_the_mean_of_its_joints():
    run = run_of(order=[["one", "two"]], sampler={"branches": 2, "pairing": "cross"})
    trees, scores = play(run)
    # sum pays both: branch b of `one` meets 0 and 1, so team mean = b + 0.5, own = b / 10
    assert branch_rewards(trees[0].root, "one", scores, run.mix) == pytest.approx([0.5, 1.6])


def test_chains_are_trees_of_their_own_with_draws_of_their_own():
    run = run_of(play="tests.games:keyed", sampler={"chains": 5, "branches": 1}, algorithm={"type": "grpo"})
    trees, _ = play(run)
    assert [tree.chain for tree in trees] == [0, 1, 2, 3, 4]
    assert (
        len(
            {
                tuple(n.decisions[r].branches[0].text for n in tree.nodes() for r in n.decisions)
                for tree in trees
            }
        )
        > 1
    )


def test_sampled_expansion_is_a_uniform_keyed_draw():
    run = run_of(env={"tasks": 600}, sampler={"branches": 3, "expand": "sampled"}, order=["one"])
    trees, _ = play(run, 600)
    taken = collections.Counter(tree.root.expanded[0] for tree in trees)
    assert {tree.root.rule for tree in trees} == {"sampled"}
    assert all(150 < taken[branch] < 250 for branch in range(3))
    again, _ = play(
        run_of(env={"tasks": 600}, sampler={"branches": 3, "expand": "sampled"}, order=["one"]), 600
    )
    assert [tree.root.expanded for tree in trees] == [tree.root.expanded for tree in again]


def test_a_terminal_commit_ends_the_turn_and_keeps_what_was_sampled():
    run = run_of(
        play="tests.games:stops",
        order=["one", "two"],
        max_turns=4,
        sampler={"branches": 2},
        rewards={
            "environment": {"type": "environment"},
            "halt": {"type": "function", "function": "tests.core.test_sampler:likes_stop"},
        },
    )
    tree = play(run)[0][0]
    assert len(nodes(tree)) == 1 and tree.root.joints[1].terminal
    assert len(tree.root.decisions["one"].branches) == 2
    assert tree.root.joints[1].outcome == {"success": 1.0, "length": 1.0}


def likes_stop(view):
    return float("stop" in {action.text for action in view.actions.values()})


def test_the_turn_limit_cuts_and_says_so():
    ((_, leaf),) = play(run_of())[0][0].leaves()
    assert leaf.cut and not leaf.terminal


def test_an_environment_may_decide_who_acts():
    run = run_of(env={"stages": [["two"], ["one"], ["two"]]}, max_turns=3)
    tree = play(run)[0][0]
    assert [tuple(node.decisions) for node in tree.nodes()] == [("two",), ("one",), ("two",)]
    assert next(iter(tree.leaves()))[1].terminal


def test_per_role_commit_plays_the_recombined_joint_outside_the_baseline():
    run = run_of(
        order=[["one", "two"]],
        play="tests.core.test_sampler:opposed",
        max_turns=2,
        sampler={"branches": 3, "commit": "per_role"},
    )
    trees, scores = play(run)
    root = trees[0].root
    assert root.rule == "per_role" and len(root.joints) == 4
    assert root.joints[3].recombined and dict(root.joints[3].pick) == {"one": 2, "two": 0}
    assert root.expanded == (3,)
    # own = text / 10 and the aligned sum is 2 for all: the fourth joint (sum 4) is in nobody's mean
    assert branch_rewards(root, "one", scores, run.mix) == pytest.approx([2.0, 2.1, 2.2])


def opposed(request, text):
    return str(request.key.branch if request.key.role == "one" else 2 - request.key.branch)


def test_the_same_run_twice_is_the_same_whatever_the_order_of_finishing():
    def texts():
        trees, _ = play(run_of(play="tests.games:keyed", env={"pause": True, "tasks": 20}, max_turns=2), 20)
        return [
            [
                (node.key, action.text)
                for node in tree.nodes()
                for d in node.decisions.values()
                for action in d.branches
            ]
            for tree in trees
        ]

    assert texts() == texts()


def test_when_every_candidate_is_missing_a_keyed_draw_decides_and_is_told():
    run = run_of(
        rewards={"broken": {"type": "function", "function": "tests.core.test_sampler:breaks"}},
        schedule={"max_missing": 1.0},
    )
    trees, _ = play(run)
    assert {node.rule for node in trees[0].nodes()} == {"uniform (all missing)"}


def breaks(view):
    raise ConnectionError("503")


def test_a_task_that_is_over_before_anybody_acts_is_an_error():
    with pytest.raises(CoterieError, match="over before anybody acts"):
        play(run_of(env={"stages": []}))


def test_a_conversation_extends_the_ids_that_were_sampled():
    run = run_of(
        order=["one"],
        max_turns=2,
        team={
            "order": ["one"],
            "max_turns": 2,
            "roles": {"one": {"type": "tests.games:Seat", "policy": "p", "remembers": True}},
        },
    )
    first, second = nodes(play(run)[0][0])
    call = first.decisions["one"].branches[2].calls[0]
    assert (
        second.decisions["one"].prompt_ids[: len(call.prompt_ids) + len(call.token_ids)]
        == call.prompt_ids + call.token_ids
    )
    assert second.decisions["one"].branches[0].calls[0].continues


def test_scripted_prompts_are_what_the_engine_is_asked():
    games.CALLS.clear()
    play(run_of())
    assert [text.strip() for text in games.CALLS[:3]] == ["one turn0"] * 3
