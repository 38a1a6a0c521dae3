"""Rollout rows become the trees and the episodes again that were played."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from coterie.api.episodes import action_rows, mean_advantage, tokens_of, trees_of
from coterie.api.rollouts import rollout_rows, step_row
from coterie.core.training.metrics import episodes
from coterie.core.types import RewardWeights
from coterie.testing import J, tree_literals
from tests.core.toy_trees import toy


def toy_trees():
    tree, scores, credit, weights = toy()
    return trees_of([step_row(3, weights, None), *rollout_rows([tree], scores, credit, weights)])


def test_a_tree_has_its_nodes_decisions_and_joint_actions_again():
    (tree,) = toy_trees()
    assert (tree.step, tree.task_id, tree.epoch, tree.chain) == (3, "train-7", 0, 0)
    assert list(tree.nodes) == ["train-7/e0/c0/n", "train-7/e0/c0/n1"]
    root, second = tree.nodes.values()
    assert root is tree.root and root.children == {1: second} and root.expanded == [1] and root.selected
    assert {role: len(d.branches) for role, d in root.decisions.items()} == {"planner": 2, "coder": 2}
    assert len(root.joints) == 3 and second.turn == 1 and not second.selected


def test_an_episode_is_the_committed_path():
    (tree,) = toy_trees()
    (episode,) = tree.episodes()
    assert episode.key == "train-7/e0/c0/n1.0" and (episode.success, episode.turns) == (1.0, 2)
    assert episode.outcome == {"success": 1.0, "quality": 0.5} and episode.selected
    rows = list(action_rows(episode))
    assert [(r["turn"], r["role"], r["branch"]) for r in rows] == [
        (0, "planner", 1),
        (0, "coder", 1),
        (1, "planner", 0),
    ]
    assert rows[0]["reward"] is None and rows[0]["scores"]["format"] is None
    assert rows[1]["fault"] == "unparsable" and rows[0]["prompt"].startswith("[system]\nYou are the planner.")
    assert [a.reward for a in episode.actions] == [a.joint["reward"][a.role] for a in episode.actions]
    assert all(len(a.siblings) == len(a.node.decisions[a.role].branches) for a in episode.actions)


def test_advantages_per_token_count_as_their_mean():
    assert mean_advantage({"advantage": [1.0, 2.0]}) == 1.5 and mean_advantage({"advantage": None}) is None
    assert mean_advantage({"advantage": 0.25}) == 0.25 and mean_advantage({"advantage": []}) is None
    assert tokens_of({"calls": [{"token_ids": [1, 2]}, {"token_ids": [3]}]}) == 3


def grown(depth: int) -> st.SearchStrategy[J]:
    value = st.sampled_from([0.0, 0.5, 1.0])
    if depth == 0:
        return value.map(J)
    below = st.lists(grown(depth - 1), min_size=1, max_size=3)
    return st.one_of(value.map(J), st.builds(J, value, below))


@given(st.lists(grown(3), min_size=1, max_size=3), st.sampled_from([["one"], ["a", "b"], [["a", "b"]]]))
def test_episodes_are_those_that_metrics_count(roots, order):
    forest = tree_literals([*roots], order=order)
    rows = list(rollout_rows(forest.trees, forest.scores, None, RewardWeights()))
    again = trees_of(rows, step=7)
    assert [(t.task_id, t.epoch, t.chain, t.step) for t in again] == [
        (t.task.id, t.epoch, t.chain, 7) for t in forest.trees
    ]
    for tree, recorded in zip(forest.trees, again, strict=True):
        counted = sorted((e.turns, e.selected, round(e.share, 12)) for e in episodes(tree))
        shown = list(recorded.episodes())
        assert sorted((e.turns, e.selected, round(e.share, 12)) for e in shown) == counted
        assert [e.index for e in shown] == list(range(len(shown))) and len({e.key for e in shown}) == len(
            shown
        )
        assert {e.key for e in shown} == {f"{path[-1][0].key.text()}.{path[-1][1]}" for path in tree.chains()}
        places = [[joint for _, joint in e.path] for e in shown]
        assert places == sorted(places), "depth first, by joint action"
        assert [n for n in recorded.nodes] == [n.key.text() for n in tree.nodes()]
        assert sum(e.share for e in shown) == pytest.approx(1)


def test_a_node_without_a_joint_action_that_goes_on_ends_an_episode_without_an_outcome():
    tree, scores, credit, weights = toy()
    lost = replace(tree, root=replace(tree.root, expanded=()))
    rows = [row for row in rollout_rows([lost], scores, credit, weights) if row["node"] == "train-7/e0/c0/n"]
    (episode,) = trees_of(rows)[0].episodes()
    assert episode.end is None and episode.success is None and list(episode.actions) == []
    assert episode.key == "train-7/e0/c0/n"
