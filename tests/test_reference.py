"""Fingerprints of tabular runs, and the comparison of two commits."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import pytest
import reference
from click.testing import CliRunner
from reference_jobs import ALGORITHMS, ROOT, tabular
from reference_runs import Difference, changed, counts, differences, fingerprint, read_run, unshared

from coterie.discovery import plugins
from tests.cli.support import coterie

GOLDEN = json.loads((ROOT / "tests" / "golden" / "tabular_runs.json").read_text(encoding="utf-8"))
AGAIN = "python benchmarks/reference.py --golden > tests/golden/tabular_runs.json"

BASE = [
    {"format": 3, "kind": "node", "node": "n", "prompt_ids": [1], "state_digest": "a"},
    {"format": 3, "kind": "branch", "calls": [{"token_ids": [2, 3], "logprobs": [-0.5, -1.0]}],
     "scores": {"sum": 1.0}, "reasons": {"sum": "the first"}, "completion": "a\u2028b",
     "fault": {"kind": "policy", "reason": "cut"}, "reward": 1.0,
     "return": 1.0, "advantage": [0.25, 0.5], "annotations": {"values": [0.0, 0.0]}},
    {"format": 3, "kind": "joint", "branches": {"one": 0}, "scores": {"late": 1.0}, "reward": {"one": 1.0},
     "terminated": True, "truncated": False, "rule": "best", "reasons": {"late": "the first"}},
]  # fmt: skip
HEAD = [
    {"format": 3, "kind": "node", "node": "n", "prompt_ids": [1], "state_digest": "b"},
    {"format": 3, "kind": "branch", "calls": [{"token_ids": [2, 3], "logprobs": [-0.5, -1.0]}],
     "scores": {"sum": 1.0}, "reasons": {"sum": "the branch"}, "completion": "a\u2028b",
     "fault": {"kind": "policy", "reason": "truncated"}, "reward": 1.0,
     "return": 1.0, "advantage": [0.25, 0.5], "annotations": {"values": [0.0, 0.0]}},
    {"format": 3, "kind": "joint", "branches": {"one": 0}, "scores": {"late": 1.0}, "reward": {"one": 1.0},
     "terminated": True, "truncated": False, "rule": "best", "reasons": {"late": "the branch"}, "more": 1},
]  # fmt: skip


def run_folder(folder: Path, rows: list[dict], loss: float = 0.5, digest: str = "ab") -> Path:
    """A run's folder of one step."""
    for name in ("rollouts", "checkpoints/step-000001"):
        (folder / name).mkdir(parents=True)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "rollouts" / "step-000001.jsonl").write_text(lines)
    (folder / "metrics.jsonl").write_text(
        json.dumps({"step": 1, "policy/p/loss": loss, "time/step": os.urandom(4).hex()}) + "\n"
    )
    manifest = {"meta": {"weights": {"p": digest}}, "files": {}}
    (folder / "checkpoints" / "step-000001" / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_tabular_run_comes_out_as_it_did(algorithm, tmp_path):
    done = coterie(*tabular(algorithm).words(tmp_path / "run"))
    assert done.exit_code == 0, done.stderr
    others = list(changed(GOLDEN[algorithm], fingerprint(tmp_path / "run")))
    assert not others, f"{algorithm}: {'; '.join(others[:5])}; if that was intended: {AGAIN}"


def test_every_algorithm_has_a_run_and_a_golden():
    assert set(ALGORITHMS) == set(GOLDEN) == set(plugins().registry.names("estimator"))


def test_prose_and_the_names_of_classes_are_not_compared(tmp_path):
    base, head = read_run(run_folder(tmp_path / "a", BASE)), read_run(run_folder(tmp_path / "b", HEAD))
    assert list(differences(base, head)) == []
    assert unshared(base, head) == {"base": [], "head": ["joint.more"]}
    assert counts(base) == counts(head) == {"steps": 1, "rows": 3, "tokens": 2}
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "b")


@pytest.mark.parametrize(
    ("index", "change", "where", "values"),
    [
        (0, {"prompt_ids": [4]}, ":1 node.prompt_ids[0]", ("1", "4")),
        (1, {"advantage": [0.25, -0.5]}, ":2 branch.advantage[1]", ("0.5", "-0.5")),
        (1, {"return": 1}, ":2 branch.return", ("1.0", "1")),
        (1, {"scores": {"total": 1.0}}, ":2 branch.scores.sum", ("1.0", "absent")),
        (1, {"calls": []}, ":2 branch.calls", None),
        (1, {"reward": None}, ":2 branch.reward", ("1.0", "null")),
        (1, {"fault": None}, ":2 branch.fault", None),
        (2, {"terminated": False}, ":3 joint.terminated", ("true", "false")),
        (2, {"rule": "all"}, ":3 joint.rule", ('"best"', '"all"')),
    ],
)
def test_a_change_is_seen_where_it_is(index, change, where, values, tmp_path):
    rows = copy.deepcopy(HEAD)
    rows[index] |= change
    base, head = read_run(run_folder(tmp_path / "a", BASE)), read_run(run_folder(tmp_path / "b", rows))
    difference = next(differences(base, head))
    assert difference.where == f"rollouts/step-000001.jsonl{where}"
    assert values is None or (difference.base, difference.head) == values


def test_a_field_that_must_be_there_is_missed(tmp_path):
    rows = [{**row, "other_name": row.get("advantage")} for row in HEAD]
    del rows[1]["advantage"]
    base, head = read_run(run_folder(tmp_path / "a", BASE)), read_run(run_folder(tmp_path / "b", rows))
    assert [difference.where.split()[-1] for difference in differences(base, head)] == ["branch.advantage"]


def test_metrics_weights_and_missing_files_are_compared(tmp_path):
    base = read_run(run_folder(tmp_path / "a", BASE))
    head = read_run(run_folder(tmp_path / "b", BASE[:2], loss=0.25, digest="cd"))
    assert list(differences(base, head)) == [
        Difference("rollouts/step-000001.jsonl rows", "3", "2"),
        Difference("metrics.jsonl (step 1).policy/p/loss", "0.5", "0.25"),
        Difference("checkpoints/step-000001.p", '"ab"', '"cd"'),
    ]
    del head[1, 2, "checkpoints/step-000001"]
    assert list(differences(base, head))[-1] == Difference("checkpoints/step-000001", "present", "absent")


def test_fingerprints_agree_within_the_last_digits_of_a_float32():
    base = {"metrics": {"loss": [0.5, -9.9e-9], "ratio": 0.99999996}, "advantages": [[4, 0.25, 0.5, 0.1]]}
    head = {"metrics": {"loss": [0.50000003, 0.0], "ratio": [1.0, 1]}, "advantages": [[4, 0.25, 0.5, 0.1]]}
    assert not list(changed(base, head)) and not list(changed(head, base))
    head["metrics"] |= {"loss": [0.500001, 0.0], "more": 1}
    head["advantages"] = [[3, 0.25, 0.5, 0.1]]
    assert list(changed(base, head)) == [
        "advantages[0][0]: 4 -> 3",
        "metrics.loss[0]: 0.5 -> 0.500001",
        "metrics.more: None -> 1",
    ]


def test_a_fingerprint_shows_another_advantage_and_another_place_of_it(tmp_path):
    other = copy.deepcopy(HEAD)
    other[1]["advantage"] = [0.5, 0.25]
    prints = [fingerprint(run_folder(tmp_path / name, rows)) for name, rows in (("a", HEAD), ("b", other))]
    assert prints[0]["advantages"] == [[2, 0.375, 0.375, 0.3125]]
    assert [part.split(":")[0] for part in changed(*prints)] == ["advantages[0][3]"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["HEAD"], "two commits are needed"),
        (["no-such-commit", "HEAD"], "unknown commit 'no-such-commit'"),
        (["HEAD", "HEAD", "--jobs", "tabluar"], "unknown job 'tabluar'"),
    ],
)
def test_bad_usage_exits_with_2_and_names_the_fix(words, what):
    done = CliRunner().invoke(reference.main, words)
    assert done.exit_code == 2
    assert what in done.stderr and "why: " in done.stderr and "fix: " in done.stderr
