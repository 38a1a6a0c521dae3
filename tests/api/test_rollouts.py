"""Rows of a rollout suffice to compute its advantages again."""

from __future__ import annotations

import json
import os
import statistics
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, strategies as st

from coterie.api.rollouts import FORMAT, read_rollouts, rollout_recorder, rollout_rows, write_rollouts
from coterie.api.run_files import create_run
from coterie.core.errors import RunFolderError
from coterie.core.protocols import Batch
from coterie.core.types import TEAM, Credit, Fault, Key, RewardWeights, Score
from coterie.testing import J, tree_literals
from tests.core.toy_trees import toy


def written(tmp_path: Path, **options: object) -> dict[str, list[dict]]:
    tree, scores, credit, reward_weights = toy()
    path = tmp_path / "rollouts" / "step-000003.jsonl"
    write_rollouts(path, rollout_rows([tree], scores, credit, reward_weights, **options))  # type: ignore[arg-type]
    rows: dict[str, list[dict]] = {"node": [], "branch": [], "joint": []}
    for row in read_rollouts(path):
        rows[row["kind"]].append(row)
    return rows


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


def test_branch_rows_have_scores_of_the_branch_and_of_its_joints_without_recombined_ones(tmp_path):
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
    forest = tree_literals([J(1.0), J(2.0), J(5.0), J(None)], order=[["a", "b"]], pairing="cross")
    rows = [
        r for r in rollout_rows(forest.trees, forest.scores, None, RewardWeights()) if r["kind"] == "branch"
    ]
    assert [r["scores"]["team.gain"] for r in rows] == [1.5, None, 3.0, None]
    assert all(r["advantage"] is None and r["return"] is None for r in rows)


def test_a_component_of_few_joints_is_averaged_over_these_in_scores_and_over_all_in_the_reward():
    """As docs/runs.md says under "rollouts/"."""
    forest = tree_literals([J(0.0)] * 4, order=[["a", "b"]], pairing="cross")
    forest.scores.add(forest.trees[0].root.key.of_joint(0), TEAM, "bonus", Score(1.0))
    rows = rollout_rows(forest.trees, forest.scores, None, RewardWeights())
    seen = {(r["role"], r["branch"]): r for r in rows if r["kind"] == "branch"}
    for role in ("a", "b"):  # branch 0 is in joint 0 and in another one
        assert seen[role, 0]["scores"]["team.bonus"] == 1.0 and seen[role, 0]["reward"] == 0.5
        assert "team.bonus" not in seen[role, 1]["scores"] and seen[role, 1]["reward"] == 0.0
    page = (Path(__file__).parents[2] / "docs" / "runs.md").read_text()
    assert "a bonus of 1 in one of two joint actions is 1 in `scores`, and 0.5 in `reward`" in page


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
    """AT-GRPO's group: the branches of one decision; advantage = (return - mean) / population deviation."""
    key, credit = Key("t"), Credit(advantage={})
    team_scores = (0.1, 0.7, 0.25, None)
    forest = tree_literals(
        [J(value, committed=value == 0.7) for value in team_scores], order=["a"], rule="best"
    )
    present = [value for value in team_scores if value is not None]
    for index, value in enumerate(present):
        branch = key.of_branch("a", index)
        credit.returns[branch] = value
        credit.advantage[branch] = (value - statistics.fmean(present)) / statistics.pstdev(present)
    path = tmp_path / "step-000001.jsonl"
    write_rollouts(
        path,
        rollout_rows(forest.trees, forest.scores, credit, RewardWeights()),
    )
    rows = [r for r in read_rollouts(path) if r["kind"] == "branch"]
    for source in ("return", "reward"):
        values = [r[source] for r in rows if r[source] is not None]
        again = [(x - statistics.fmean(values)) / statistics.pstdev(values) for x in values]
        assert again == [r["advantage"] for r in rows if r["advantage"] is not None] and len(again) == 3


@pytest.mark.parametrize(("frozen", "lost"), [(True, False), (False, True)])
def test_what_is_not_trained_has_no_advantage(frozen, lost):
    """An estimator may credit a frozen policy's branch, or one that the system lost: no trainer gets it."""
    forest = tree_literals([J(0.25), J(0.5)], order=["a"])
    (tree,) = forest.trees
    decision = tree.root.decisions["a"]
    fault = Fault(kind="system", reason="the engine aborted the call") if lost else None
    branch = replace(decision.branches[0], fault=fault)
    changed = replace(decision, trainable=not frozen, branches=(branch, decision.branches[1]))
    tree = replace(tree, root=replace(tree.root, decisions={"a": changed}))
    keys = [tree.root.key.of_branch("a", index) for index in range(2)]
    credit = Credit(
        advantage=dict.fromkeys(keys, 1.5), weight=dict.fromkeys(keys, 0.5), returns=dict.fromkeys(keys, 0.25)
    )
    rows = [r for r in rollout_rows([tree], forest.scores, credit, RewardWeights()) if r["kind"] == "branch"]
    assert (rows[0]["advantage"], rows[0]["weight"], rows[0]["return"]) == (None, None, 0.25)
    assert rows[1]["advantage"] == (None if frozen else 1.5)


def test_an_actions_own_scores_are_kept_apart_from_those_of_its_joints(tmp_path):
    """`coder.tests` of both would be added in `scores`; a return over turns needs each with its owner."""
    tree, scores, credit, reward_weights = toy()
    scores.add(tree.root.key.of_branch("coder", 0), "coder", "tests", Score(0.5, "", "critic"))
    scores.add(tree.root.key.of_branch("coder", 0), TEAM, "style", Score(None, "lost", "critic"))
    rows = [
        row
        for row in rollout_rows([tree], scores, credit, reward_weights)
        if row["kind"] == "branch" and row["role"] == "coder"
    ]
    assert rows[0]["own_scores"] == {"coder.tests": 0.5, "team.style": None} and rows[1]["own_scores"] == {}
    assert rows[0]["scores"]["tests"] == 0.5 and rows[0]["reasons"] == {"team.style": "lost"}


def test_a_runs_file_begins_with_what_its_rewards_are_summed_with(tmp_path):
    tree, scores, credit, _ = toy()
    weights = RewardWeights(weights={"format": 0.5}, team_weight=2.0, kinds={"progress": "potential"})
    folder = create_run(tmp_path / "run", "")
    annotations = {"values": {tree.root.key.of_branch("coder", 0): np.array([0.1], dtype=np.float32)}}
    batch = Batch(trees=[tree], scores=scores, annotations=annotations, reward_weights=weights)
    rollout_recorder(folder)(3, batch, {"coder": 0.1}, credit)
    first, *rows = read_rollouts(folder.rollout_file(3))
    assert first == {
        "kind": "step", "format": 3, "step": 3, "weights": {"format": 0.5}, "team_weight": 2.0,
        "kinds": {"progress": "potential"}, "state": {"coder": 0.1},
    }  # fmt: skip
    (row,) = [row for row in rows if row.get("annotations")]
    assert row["role"] == "coder" and np.float32(row["annotations"]["values"][0]) == np.float32(0.1)
    assert {row["epoch"] for row in rows} == {0}


def test_a_rollout_file_is_whole_or_absent(tmp_path):
    def rows():
        yield {"kind": "node"}
        raise RuntimeError("half-way")

    with pytest.raises(RuntimeError):
        write_rollouts(tmp_path / "rollouts" / "step-000001.jsonl", rows())
    assert os.listdir(tmp_path / "rollouts") == []


def test_a_file_that_somebody_decompressed_is_read_exactly(tmp_path):
    path = tmp_path / "step-000001.jsonl"
    values = [-0.1, -1 / 3, float(np.float32(-0.1))]
    row = {"kind": "branch", "format": FORMAT, "completion": "a\u2028b", "annotations": {"values": values},
           "calls": [{"token_ids": [1, 2, 3], "logprobs": values, "finish": "stop"}]}  # fmt: skip
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_rollouts(path) == read_rollouts(str(path)) == [row]


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = st.lists(FLOATS, max_size=4) | st.lists(
    st.floats(allow_nan=False, allow_infinity=False, width=32), max_size=4
)


@given(calls=st.lists(NUMBERS, max_size=3), annotations=st.dictionaries(st.sampled_from("abc"), NUMBERS))
def test_every_number_comes_back_whatever_its_precision(calls, annotations):
    row = {"kind": "branch", "format": FORMAT, "annotations": annotations,
           "calls": [{"finish": "stop", "logprobs": logprobs} for logprobs in calls]}  # fmt: skip
    with TemporaryDirectory() as folder:
        path = Path(folder) / "step-000001.jsonl.gz"
        write_rollouts(path, [row])
        assert repr(read_rollouts(path)) == repr([row])  # repr: -0.0 is not 0.0


def test_a_file_takes_a_third_of_its_rows_text(tmp_path):
    """At most, even where nothing repeats: sampled tokens of a large vocabulary and their log-probs."""
    draws = np.random.default_rng(0)
    rows = []
    for index in range(50):
        ids = np.minimum(draws.zipf(1.2, 200), 150_000).tolist()
        logprobs = (-draws.exponential(0.5, 200)).astype(np.float32).astype(float).tolist()
        calls = [{"token_ids": ids, "logprobs": logprobs, "finish": "stop"}]
        rows.append({"kind": "branch", "format": FORMAT, "branch": index, "calls": calls, "annotations": {}})
    path = tmp_path / "step-000001.jsonl.gz"
    write_rollouts(path, rows)
    assert read_rollouts(path) == rows
    assert path.stat().st_size <= sum(len(json.dumps(row)) for row in rows) / 3


@pytest.mark.parametrize("harm", [lambda raw: raw[:-20], lambda raw: raw[:40] + b"xx" + raw[42:]])
def test_a_damaged_file_is_named(tmp_path, harm):
    path = tmp_path / "step-000001.jsonl.gz"
    write_rollouts(path, [{"kind": "joint", "format": FORMAT, "rule": "best"}] * 3)
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(RunFolderError, match="is damaged") as caught:
        read_rollouts(path)
    assert str(path) in str(caught.value) and caught.value.fix


@pytest.mark.parametrize(("row", "named"), [({"format": 4}, "format 4"), ({}, "format None")])
def test_rows_of_another_format_are_refused(tmp_path, row, named):
    path = tmp_path / "step-000001.jsonl"
    write_rollouts(path, [{"kind": "joint", **row}])
    with pytest.raises(RunFolderError, match=named) as caught:
        read_rollouts(path)
    assert caught.value.fix
