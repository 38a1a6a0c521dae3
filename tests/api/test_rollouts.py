"""Rows of a rollout suffice to compute it again, and a step's metrics don't flatter."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from coterie.api.rollouts import read_rollouts, rollout_rows, write_rollouts
from coterie.core.errors import RunFolderError
from coterie.core.storage.jsonl import to_json
from coterie.core.training.metrics import episodes, step_metrics
from coterie.core.types import (
    TEAM,
    Action,
    Call,
    Credit,
    Decision,
    Fault,
    JointAction,
    Key,
    Node,
    RewardWeights,
    Score,
    Scores,
    Task,
    Tree,
)

# ------------------------------------------------------------------------------------------------- toy trees


def action(
    tokens: int, *, text: str = "go", finish: str = "stop", fault: Fault | None = None, prompt: int = 3
) -> Action:
    calls = (
        (
            Call(
                prompt_ids=tuple(range(prompt)),
                token_ids=tuple(range(tokens)),
                logprobs=tuple(-1 / (3 + i) for i in range(tokens)),
                version=5,
                finish=finish,
            ),  # type: ignore[arg-type]
        )
        if tokens
        else ()
    )
    return Action(calls=calls, text=text, fault=fault)


def decision(role: str, *branches: Action) -> Decision:
    messages = ({"role": "system", "content": f"You are the {role}."}, {"role": "user", "content": "Go on."})
    return Decision(
        role=role,
        policy=f"p_{role}",
        observation=None,
        messages=messages,
        prompt_ids=(1, 2, 3),
        prompt_sha256="abc",
        branches=branches,
    )


def leaf(combination: Mapping[str, int], success: float | None, **more: object) -> JointAction:
    outcome = None if success is None else {"success": success, "quality": success / 2}
    return JointAction(branches=combination, state_digest="end", terminated=True, outcome=outcome, **more)  # type: ignore[arg-type]


def toy() -> tuple[Tree, Scores, Credit, RewardWeights]:
    """Planner and coder act at once, two branches each, `best` commits joint 1; then the planner ends it."""
    root, late = Key("train-7"), Key("train-7").child(1)
    end = Node(
        key=late,
        turn=1,
        stage=0,
        state_digest="s1",
        decisions={"planner": decision("planner", action(2))},
        joints=(leaf({"planner": 0}, 1.0),),
        expanded=(0,),
        rule="only",
    )
    start = Node(
        key=root,
        turn=0,
        stage=0,
        state_digest="s0",
        rule="best",
        expanded=(1,),
        decisions={
            "planner": decision("planner", action(4), action(5, finish="length")),
            "coder": decision(
                "coder", action(1, text=" "), action(3, fault=Fault(kind="policy", reason="unparsable"))
            ),
        },
        joints=(
            JointAction(branches={"planner": 0, "coder": 0}, state_digest="s0a"),
            JointAction(branches={"planner": 1, "coder": 1}, state_digest="s1", child=end),
            JointAction(branches={"planner": 0, "coder": 1}, state_digest="s2", recombined=True),
        ),
    )
    scores = Scores()
    for joint, team in ((0, 0.25), (1, 1 / 3), (2, 9.0)):
        scores.add(root.of_joint(joint), TEAM, "progress", Score(team, "", "environment"))
        scores.add(root.of_joint(joint), "coder", "tests", Score(float(joint), "", "environment"))
    scores.add(root.of_branch("planner", 0), "planner", "format", Score(1.0, "", "format"))
    scores.add(root.of_branch("planner", 1), "planner", "format", Score(None, "503 from the judge", "format"))
    scores.add(late.of_joint(0), TEAM, "progress", Score(1.0, "", "environment"))
    credit = Credit(
        advantage={
            root.of_branch("planner", 0): 0.1 + 0.2,
            root.of_branch("coder", 0): -1.0,
            root.of_branch("coder", 1): np.array([0.5, 1.5, 1.0]),
        },
        weight={root.of_branch("coder", 0): 0.5},
        returns={root.of_branch("planner", 0): 1.25, root.of_branch("coder", 0): 0.25},
        metrics={"groups/coder/zero_variance": 0.0},
    )
    tree = Tree(task=Task(id="train-7"), chain=0, epoch=0, root=start)
    return tree, scores, credit, RewardWeights(weights={"format": 0.5}, team_weight=2.0)


def written(tmp_path: Path, **more: object) -> dict[str, list[dict]]:
    tree, scores, credit, reward_weights = toy()
    path = tmp_path / "rollouts" / "step-000003.jsonl"
    write_rollouts(path, rollout_rows([tree], scores, credit, reward_weights, **more))  # type: ignore[arg-type]
    rows: dict[str, list[dict]] = {"node": [], "branch": [], "joint": []}
    for row in read_rollouts(path):
        rows[row["kind"]].append(row)
    return rows


# ------------------------------------------------------------------------------------------------------ rows


def test_rows_name_every_prompt_branch_and_joint(tmp_path):
    rows = written(tmp_path)
    assert [(r["node"], r["role"], r["turn"]) for r in rows["node"]] == [
        ("train-7/e0/c0/n", "planner", 0),
        ("train-7/e0/c0/n", "coder", 0),
        ("train-7/e0/c0/n1", "planner", 1),
    ]
    node = rows["node"][0]
    assert node["prompt"] == "[system]\nYou are the planner.\n\n[user]\nGo on."
    assert (node["state_digest"], node["policy"], node["prompt_sha256"]) == ("s0", "p_planner", "abc")
    assert len(rows["branch"]) == 5 and len(rows["joint"]) == 4
    assert all(r["task_id"] == "train-7" and r["chain"] == 0 for kind in rows.values() for r in kind)
    joint = rows["joint"][1]
    assert joint["branches"] == {"planner": 1, "coder": 1} and joint["child"] == "train-7/e0/c0/n1"
    assert (
        joint["expanded"] and joint["rule"] == "best" and not joint["terminated"] and joint["outcome"] is None
    )
    assert joint["scores"] == {"team.progress": 1 / 3, "coder.tests": 1.0}
    end = rows["joint"][3]
    assert end["terminated"] and end["child"] is None and end["outcome"] == {"success": 1.0, "quality": 0.5}
    assert [r["recombined"] for r in rows["joint"]] == [False, False, True, False]


def test_branch_rows_hold_own_and_joint_scores_and_leave_recombined_joints_out(tmp_path):
    rows = {(r["node"][-2:], r["role"], r["branch"]): r for r in written(tmp_path)["branch"]}
    planner, missing = rows["/n", "planner", 0], rows["/n", "planner", 1]
    assert planner["scores"] == {"format": 1.0, "team.progress": 0.25}
    assert planner["reward"] == 0.5 * 1.0 + 2.0 * 0.25
    assert missing["scores"] == {"format": None, "team.progress": 1 / 3} and missing["reward"] is None
    assert missing["reasons"] == {"format": "503 from the judge"}
    coder = rows["/n", "coder", 1]
    assert coder["scores"] == {"tests": 1.0, "team.progress": 1 / 3}, "joint 2 is outside every baseline"
    assert coder["fault"] == {"kind": "policy", "reason": "unparsable"}


def test_a_cross_pairing_gives_a_branch_the_mean_over_its_joints():
    scores, key = Scores(), Key("t")
    combinations = [{"a": a, "b": b} for a in range(2) for b in range(2)]
    for index, value in enumerate((1.0, 2.0, 5.0, None)):
        scores.add(key.of_joint(index), TEAM, "team", Score(value, "" if value else "lost"))
    node = Node(
        key=key,
        turn=0,
        stage=0,
        joints=tuple(leaf(combination, 1.0) for combination in combinations),
        expanded=(0, 1, 2, 3),
        rule="all",
        decisions={role: decision(role, action(1), action(1)) for role in "ab"},
    )
    tree = Tree(task=Task(id="t"), chain=0, epoch=0, root=node)
    rows = [r for r in rollout_rows([tree], scores, None, RewardWeights()) if r["kind"] == "branch"]
    assert [r["scores"]["team.team"] for r in rows] == [1.5, None, 3.0, None]
    assert all(r["advantage"] is None and r["return"] is None for r in rows)


def test_floats_come_back_bit_for_bit(tmp_path):
    tree = toy()[0]
    rows = {(r["role"], r["branch"]): r for r in written(tmp_path)["branch"] if r["node"].endswith("/n")}
    for (role, branch), row in rows.items():
        (call,) = tree.root.decisions[role].branches[branch].calls
        assert row["calls"] == [
            {"token_ids": list(call.token_ids), "logprobs": list(call.logprobs), "finish": call.finish}
        ]
        assert row["version"] == 5
    assert rows["planner", 0]["advantage"] == 0.1 + 0.2 and rows["planner", 0]["weight"] == 1.0
    assert rows["coder", 0]["weight"] == 0.5 and rows["coder", 0]["return"] == 0.25
    assert rows["coder", 1]["advantage"] == [0.5, 1.5, 1.0], "per token"
    assert rows["planner", 1]["advantage"] is None, "an absent key is not trained"


def test_texts_and_annotations_are_added_on_request(tmp_path):
    key = Key("train-7").of_branch("coder", 0)
    rows = written(
        tmp_path,
        decode=lambda policy, call: f"{policy}:{len(call.token_ids)}",
        annotations={"ref_logprobs": {key: np.array([-0.125])}},
    )
    row = next(r for r in rows["branch"] if r["role"] == "coder")
    assert row["calls"][0]["text"] == "p_coder:1" and row["annotations"] == {"ref_logprobs": [-0.125]}


def test_advantages_can_be_computed_again_from_the_file_alone(tmp_path):
    """At-GRPO's group: the branches of one decision; advantage = (return - mean) / population deviation."""
    scores, key, credit = Scores(), Key("t"), Credit(advantage={})
    values = (0.1, 0.7, 0.25, None)
    for index, value in enumerate(values):
        scores.add(key.of_joint(index), TEAM, "progress", Score(value))
    present = [value for value in values if value is not None]
    for index, value in enumerate(present):
        branch = key.of_branch("a", index)
        credit.returns[branch] = value
        credit.advantage[branch] = (value - statistics.fmean(present)) / statistics.pstdev(present)
    node = Node(
        key=key,
        turn=0,
        stage=0,
        joints=tuple(leaf({"a": i}, 0.0) for i in range(4)),
        expanded=(1,),
        rule="best",
        decisions={"a": decision("a", *[action(2)] * 4)},
    )
    path = tmp_path / "step-000001.jsonl"
    write_rollouts(
        path,
        rollout_rows([Tree(task=Task(id="t"), chain=0, epoch=0, root=node)], scores, credit, RewardWeights()),
    )
    rows = [r for r in read_rollouts(path) if r["kind"] == "branch"]
    for source in ("return", "reward"):
        found = [r[source] for r in rows if r[source] is not None]
        again = [(x - statistics.fmean(found)) / statistics.pstdev(found) for x in found]
        assert again == [r["advantage"] for r in rows if r["advantage"] is not None] and len(again) == 3


def test_a_rollout_file_is_whole_or_absent(tmp_path):
    def rows():
        yield {"kind": "node"}
        raise RuntimeError("half-way")

    with pytest.raises(RuntimeError):
        write_rollouts(tmp_path / "rollouts" / "step-000001.jsonl", rows())
    assert os.listdir(tmp_path / "rollouts") == []


# ---------------------------------------------------------------------------------------------- step metrics


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
    assert metrics["groups/coder/zero_variance"] == 0.0, "the estimator's own are passed through"
    assert metrics["length/planner"] == pytest.approx((4 + 5 + 2) / 3) and metrics["length/coder"] == 2.0
    assert metrics["finish_length/planner"] == pytest.approx(1 / 3) and metrics["empty/coder"] == 0.5
    assert (metrics["faults/policy"], metrics["faults/system"]) == (1.0, 0.0)
    assert (metrics["tokens/generated"], metrics["tokens/prompt"]) == (15.0, 15.0)
    assert metrics["selection/uniform"] == 0.0


def chain(task: str, success: float | None, rule: str = "sampled", *, fault: Fault | None = None) -> Tree:
    """One stage, one branch."""
    joint = leaf({"a": 0}, success, fault=fault)
    node = Node(
        key=Key(task),
        turn=0,
        stage=0,
        joints=(joint,),
        expanded=() if fault else (0,),
        rule=rule,
        decisions={"a": decision("a", action(0 if fault else 2, text="", fault=fault))},
    )
    return Tree(task=Task(id=task), chain=0, epoch=0, root=node)


def test_sampled_paths_are_success_and_lost_episodes_are_counted_and_left_out():
    lost = Fault(kind="system", reason="the worker died")
    trees = [chain("a", 1.0), chain("b", 0.0), chain("c", 1.0), chain("d", None, "only", fault=lost)]
    metrics = step_metrics(trees, Scores(), None, RewardWeights())
    assert metrics["success"] == pytest.approx(2 / 3) and "success_committed" not in metrics
    assert metrics["episodes/missing"] == 0.25 and metrics["turns_to_success"] == 1.0
    assert metrics["faults/system"] == 1.0, "the joint's fault is its action's"
    assert metrics["length/a"] == 2.0, "what the system aborted has no length"
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


def bushy(success_by_leaf: Mapping[tuple[int, ...], float], path: tuple[int, ...] = ()) -> Node:
    """`expand: all` with two joints everywhere; a leaf where the table has one."""
    joints = []
    for index in range(2):
        place = (*path, index)
        if place in success_by_leaf:
            joints.append(leaf({"a": index}, success_by_leaf[place]))
        else:
            joints.append(
                JointAction(branches={"a": index}, state_digest="", child=bushy(success_by_leaf, place))
            )
    return Node(
        key=Key("t", path=path),
        turn=len(path),
        stage=0,
        joints=tuple(joints),
        expanded=(0, 1),
        rule="all",
        decisions={"a": decision("a", action(1), action(1))},
    )


def test_leaves_of_a_bushy_side_do_not_outvote_the_others():
    """The policy succeeds at once half of the time, and never later: 1/2, though 1 of 3 leaves is solved."""
    tree = Tree(task=Task(id="t"), chain=0, epoch=0, root=bushy({(0,): 1.0, (1, 0): 0.0, (1, 1): 0.0}))
    assert [(e.share, e.turns) for e in episodes(tree)] == [(0.5, 1), (0.25, 2), (0.25, 2)]
    assert step_metrics([tree], Scores(), None, RewardWeights())["success"] == 0.5


def test_a_step_without_anything_is_no_number_but_has_its_keys():
    team = SimpleNamespace(roles={"planner": None})
    metrics = step_metrics([], Scores(), Credit(advantage={}), RewardWeights(), team)  # type: ignore[arg-type]
    assert math.isnan(metrics["success"]) and math.isnan(metrics["reward/planner"])
    assert all(isinstance(value, float) for value in metrics.values())
    assert json.loads(to_json(metrics))["success"] is None


def test_rows_of_format_1_are_read_under_the_new_names(tmp_path):
    path = tmp_path / "step-000001.jsonl"
    joint = {"kind": "joint", "pick": {"a": 1}, "terminal": True, "cut": False, "reward": {"a": 0.5}}
    branch = {"kind": "branch", "notes": {"ref_logprobs": [-0.5]}, "completion": "x"}
    write_rollouts(path, [joint, branch])
    assert read_rollouts(path) == [
        {"kind": "joint", "format": 2, "branches": {"a": 1}, "terminated": True, "truncated": False,
         "reward": {"a": 0.5}},
        {"kind": "branch", "format": 2, "annotations": {"ref_logprobs": [-0.5]}, "completion": "x"},
    ]  # fmt: skip


def test_rows_of_a_later_format_are_refused(tmp_path):
    path = tmp_path / "step-000001.jsonl"
    write_rollouts(path, [{"kind": "joint", "format": 3}])
    with pytest.raises(RunFolderError, match="format 3") as caught:
        read_rollouts(path)
    assert caught.value.fix
