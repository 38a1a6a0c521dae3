"""A step's metrics: success, rewards, advantages, lengths, faults, and what is missing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from coterie.core.rollout.contracts import FRAMEWORK_METRICS
from coterie.core.storage.jsonl import to_json
from coterie.core.training.metrics import episodes, step_metrics
from coterie.core.types import Credit, Fault, JointAction, Key, Node, RewardWeights, Scores, Tree
from coterie.testing import Forest, J, tree_literals
from tests.core.toy_trees import toy


def test_the_best_of_several_is_never_reported_as_success():
    tree, scores, credit, reward_weights = toy()
    metrics = step_metrics([tree], scores, credit, reward_weights)
    assert metrics["success_committed"] == 1.0 and "success" not in metrics
    assert metrics["outcome_committed/quality"] == 0.5 and "outcome/quality" not in metrics
    assert metrics["turns_to_success"] == 2.0 and metrics["episodes/missing"] == 0.0


def test_rewards_scores_and_what_is_missing():
    tree, scores, credit, reward_weights = toy()
    metrics = step_metrics([tree], scores, credit, reward_weights)
    assert metrics["reward/planner"] == pytest.approx((1.0 + 2.0) / 2), "the missing one is left out"
    assert metrics["reward/coder"] == pytest.approx((0.0 + 2 * 0.25 + 1.0 + 2 / 3) / 2)
    assert metrics["score/team/progress"] == pytest.approx((0.25 + 1 / 3 + 9 + 1) / 4)
    assert metrics["score/planner/format"] == 1.0
    assert metrics["missing/format"] == 0.5 and metrics["missing/progress"] == 0.0
    assert metrics["missing/share"] == pytest.approx(1 / 9)


def test_advantages_lengths_faults_and_tokens():
    tree, scores, credit, reward_weights = toy()
    metrics = step_metrics([tree], scores, credit, reward_weights)
    assert metrics["advantage/planner/mean"] == 0.1 + 0.2 and metrics["advantage/planner/std"] == 0.0
    assert metrics["advantage/coder/mean"] == pytest.approx(0.5) and metrics["advantage/coder/abs"] == 1.0
    assert metrics["groups/coder/zero_variance"] == 0.0, "the estimator's metrics are passed through"
    assert metrics["length/planner"] == pytest.approx((4 + 5 + 2) / 3) and metrics["length/coder"] == 2.0
    assert metrics["finish_length/planner"] == pytest.approx(1 / 3) and metrics["empty/coder"] == 0.5
    assert (metrics["faults/policy"], metrics["faults/system"]) == (1.0, 0.0)
    assert metrics["faults/planner/policy"] == 0.0 and metrics["faults/coder/policy"] == 0.5, (
        "by role, shares"
    )
    assert (metrics["tokens/generated"], metrics["tokens/prompt"]) == (15.0, 15.0)
    assert metrics["selection/uniform"] == 0.0


@pytest.mark.parametrize(("finishes", "share"), [(("stop", "length"), 1.0), (("length", "stop"), 0.0)])
def test_an_action_was_cut_off_where_its_last_call_was(finishes, share):
    tree = chain("t", 1.0)
    decision = tree.root.decisions["a"]
    (action,) = decision.branches
    calls = tuple(replace(action.calls[0], finish=finish) for finish in finishes)
    decision = replace(decision, branches=(replace(action, calls=calls),))
    tree = replace(tree, root=replace(tree.root, decisions={"a": decision}))
    assert step_metrics([tree], Scores(), None, RewardWeights())["finish_length/a"] == share


def chain(task: str, success: float | None, rule: str = "sampled", *, lost: bool = False) -> Tree:
    """One stage, one branch of two tokens."""
    outcome = None if success is None else {"success": success}
    place = f"{task}/0:a0"
    forest = Forest(order=(("a",),), rule=rule, logprobs={place: (-0.5, -0.5)})
    return forest.grow([J(lost=lost, outcome=outcome)], task=task).trees[0]


def test_sampled_paths_are_success_and_lost_episodes_are_counted_and_left_out():
    trees = [chain("a", 1.0), chain("b", 0.0), chain("c", 1.0), chain("d", None, "only", lost=True)]
    metrics = step_metrics(trees, Scores(), None, RewardWeights())
    assert metrics["success"] == pytest.approx(2 / 3) and "success_committed" not in metrics
    assert metrics["episodes/missing"] == 0.25 and metrics["turns_to_success"] == 1.0
    assert metrics["faults/system"] == 1.0, "the joint's fault is its action's"
    assert metrics["length/a"] == 2.0, "an action that a system fault aborted has no length"
    assert metrics["missing/share"] == 0.0


def test_one_chosen_path_makes_the_whole_step_committed():
    metrics = step_metrics(
        [chain("a", 1.0), chain("b", 0.0, "uniform (all missing)")], Scores(), None, RewardWeights()
    )
    assert (
        metrics["success_committed"] == 0.5
        and "success" not in metrics
        and metrics["selection/uniform"] == 1.0
    )


def test_an_episode_that_is_a_joint_fault_is_counted_once():
    tree = chain("a", None)
    joint = JointAction(
        branches={"a": 0},
        state_digest="",
        truncated=True,
        fault=Fault(kind="system", reason="the sandbox is gone"),
    )
    node = Node(key=Key("a"), turn=0, stage=0, joints=(joint,), rule="only", decisions=tree.root.decisions)
    metrics = step_metrics(
        [Tree(task=tree.task, chain=0, epoch=0, root=node)], Scores(), None, RewardWeights()
    )
    assert metrics["faults/system"] == 1.0 and math.isnan(metrics["success"]) and metrics["length/a"] == 2.0


def test_a_subtree_with_many_leaves_does_not_outvote_the_others():
    """The policy succeeds at once half of the time, and never later: 1/2, though 1 of 3 leaves is solved."""
    solved, unsolved = J(outcome={"success": 1.0}), J(outcome={"success": 0.0})
    (tree,) = tree_literals([solved, J(then=[unsolved, unsolved])], rule="all").trees
    assert [(e.share, e.turns) for e in episodes(tree)] == [(0.5, 1), (0.25, 2), (0.25, 2)]
    assert step_metrics([tree], Scores(), None, RewardWeights())["success"] == 0.5


def test_a_step_without_trees_has_every_metric_as_nan():
    team = SimpleNamespace(members={"planner": None})
    metrics = step_metrics([], Scores(), Credit(advantage={}), RewardWeights(), team)  # type: ignore[arg-type]
    assert math.isnan(metrics["success"]) and math.isnan(metrics["reward/planner"])
    assert all(isinstance(value, float) for value in metrics.values())
    assert json.loads(to_json(metrics))["success"] is None


def test_every_metric_of_a_step_has_a_name_that_plugins_may_not_use():
    tree, scores, credit, reward_weights = toy()
    names = {*step_metrics([tree], scores, replace(credit, metrics={}), reward_weights)}
    assert {name.partition("/")[0] for name in names} <= FRAMEWORK_METRICS
