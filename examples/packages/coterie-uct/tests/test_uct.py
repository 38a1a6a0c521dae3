"""The search finds what sampling doesn't, and its trees and its credit are what they are said to be."""

import coterie_uct
import pytest

import coterie
from coterie import Batch, RewardWeights
from coterie.testing import (
    J,
    build,
    check_environment,
    check_estimator,
    check_plugin,
    check_role,
    check_sampler,
    coterie_run,
    play_episode,
    tree_literals,
)

GAME = {"type": "uct_trap", "length": 8}
SEARCH = {"type": "uct", "branches": 5, "episodes": 24, "exploration": 0.1}


def keyed(request, prompt):
    """A policy that has learnt nothing: one move or the other, by the request's keyed seed."""
    return ("left", "right")[request.seed % 2]


def played(sampler, algorithm):
    """The trees of one step of all 16 tasks."""
    run = coterie_run(
        keyed,
        env=GAME,
        order=["walker"],
        roles={"walker": {"type": "uct_walker"}},
        max_turns=8,
        sampler=sampler,
        algorithm={"type": algorithm},
    )
    return play_episode(run, tasks=16)[0]


def reached(trees):
    """The share of tasks of which an episode reached the treasure."""
    best = {}
    for tree in trees:
        for _, leaf in tree.leaves():
            best[tree.task.id] = max(best.get(tree.task.id, 0.0), leaf.outcome["success"])
    return sum(best.values()) / len(best)


def calls(trees):
    return sum(
        len(decision.branches)
        for tree in trees
        for node in tree.nodes()
        for decision in node.decisions.values()
    )


def test_it_finds_more_treasures_than_sampling_with_no_fewer_calls():
    search = played(SEARCH, "uct_grpo")
    chains = played({"chains": 32, "branches": 1}, "grpo")
    greedy = played({"chains": 7, "branches": 5, "expand": "best"}, "at_grpo")
    assert calls(search) <= min(calls(chains), calls(greedy) * 1.2)
    assert reached(search) > 0.5 > 0.3 > reached(chains) and reached(greedy) == 0.0


def test_an_action_is_taken_again_where_it_paid_and_none_is_sampled_twice():
    for tree in played(SEARCH, "uct_grpo"):
        keys = [node.key for node in tree.nodes()]
        assert len(set(keys)) == len(keys)
        assert all(node.rule == "uct" and node.expanded for node in tree.nodes())


def test_the_same_seed_finds_the_same_episodes():
    first, second = played(SEARCH, "uct_grpo"), played(SEARCH, "uct_grpo")
    assert [tree.root.expanded for tree in first] == [tree.root.expanded for tree in second]
    assert [list(tree.leaves()) for tree in first] == [list(tree.leaves()) for tree in second]


def test_the_credit_is_the_mean_return_of_the_episodes_through_an_action():
    # Two of the root's three actions were played on: one to returns 1 and 0, the other to 0.
    unplayed = J(0.1, committed=False)
    root = [J(0.0, [J(1.0), J(0.0)]), J(0.0, [J(0.0), unplayed]), unplayed]
    step = tree_literals(root)
    batch = Batch(trees=step.trees, scores=step.scores, annotations={}, reward_weights=RewardWeights())
    estimator = build("estimator", {"type": "uct_grpo", "normalise": {"type": "none"}})
    credit, _ = estimator(batch, None)
    given = {(key.path, key.branch): value for key, value in credit.advantage.items()}
    # The episodes' returns are 1, 0 and 0: mean 1/3.
    assert given == {
        ((), 0): pytest.approx(0.5 - 1 / 3),
        ((), 1): pytest.approx(-1 / 3),
        ((0,), 0): pytest.approx(2 / 3),
        ((0,), 1): pytest.approx(-1 / 3),
        ((1,), 0): pytest.approx(-1 / 3),
    }


def test_what_the_search_decides_is_refused_in_its_settings():
    with pytest.raises(coterie.ConfigError, match="the search reads no expand"):
        build("sampler", {"type": "uct", "expand": "all"})


def test_the_kit():
    check_sampler(build("sampler", {"type": "uct", "branches": 2, "episodes": 5}))
    check_estimator(build("estimator", "uct_grpo"))
    walker = build("role", "uct_walker", name="walker", env=GAME)
    environment = build("environment", GAME, order=["walker"])
    moves = ["left", "right", "up"]
    check_environment(environment, roles=["walker"], act=moves, role_plugins={"walker": walker})
    check_role(walker, observations=["way left step 0"], good=["left"])
    check_plugin(coterie_uct)


def test_the_smoke_recipe_learns_the_way(tmp_path):
    assert coterie.train("uct-smoke", out=tmp_path / "run").metrics["eval/success"] > 0.7
