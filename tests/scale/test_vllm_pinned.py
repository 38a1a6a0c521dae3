"""Engine `vllm` with pinned steps ahead: the run equals a plain sequential loop, up to rounding.

Batches form by arrival, so the last bits of a log-prob may differ between two runs of vLLM, and so those of
the weights that are trained on it: log-probs are compared by `TOLERANCE`. Keys, versions and tokens are
compared exactly: a draw changes only where it falls within that distance, which none of these few hundred
does. The learning rate is high, so that tokens of another version would be other tokens.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.scale, pytest.mark.xdist_group("vllm"), pytest.mark.timeout(600)]
pytest.importorskip("vllm", reason="runs in the venv of `make test-scale`")

from tests.core.training.steps_ahead import asynchronous, oracle  # noqa: E402
from tests.scale.vllm_models import TOLERANCE  # noqa: E402

AHEAD, STEPS = 1, 4
SETTINGS = (
    "engine={type: vllm, process: inside, kv_gib: 0.05}", "policies.*.model.head_dim=32",
    "policies.*.optimizer.learning_rate=0.003", f"schedule.steps={STEPS}", "schedule.tasks_per_step=2",
    "schedule.evaluate_every=0", "loss.entropy=0.3",  # moves the weights of a model that earns nothing yet
)  # fmt: skip
NAMED = {"scale": "smoke", "overlays": ["l1", "per_role"]}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return drawn(oracle("plan_path", AHEAD, tmp_path_factory.mktemp("oracle"), *SETTINGS, **NAMED))


def drawn(record):
    """By step, node and branch: the version of each call, its tokens and their log-probs."""
    return {
        (step, node.key.text(), role, number): [
            (call.version, tuple(call.token_ids), call.logprobs) for call in action.calls
        ]
        for step, trees, _ in record.trees
        for tree in trees
        for node in tree.nodes()
        for role, decision in node.decisions.items()
        for number, action in enumerate(decision.branches)
    }


def recorded(folder):
    """The same of a run's folder."""
    found = {}
    for step in range(1, STEPS + 1):
        with gzip.open(folder / "rollouts" / f"step-{step:06}.jsonl.gz", "rt") as file:
            for row in map(json.loads, file):
                if row["kind"] == "branch":
                    found[step, row["node"], row["role"], row["branch"]] = [
                        (row["version"], tuple(call["token_ids"]), call["logprobs"]) for call in row["calls"]
                    ]
    return found


def same(expected, found):
    assert list(found) == list(expected) and len(found) >= 2 * STEPS
    gap = 0.0
    for name, calls in expected.items():
        assert [call[:2] for call in found[name]] == [call[:2] for call in calls], name
        for call, other in zip(calls, found[name], strict=True):
            gap = max(gap, *(abs(one - two) for one, two in zip(call[2], other[2], strict=True)))
            assert call[0] == max(name[0] - 1 - AHEAD, 0)
    assert gap < TOLERANCE


def test_a_pinned_run_equals_the_oracle(expected):
    """With random delays of environments, rewards, updates and syncs."""
    same(expected, drawn(asynchronous("plan_path", AHEAD, 1, *SETTINGS, **NAMED)))


@pytest.mark.long
def test_the_oracle_of_other_versions_draws_other_tokens(tmp_path, expected):
    other = drawn(oracle("plan_path", 0, tmp_path, *SETTINGS, **NAMED))
    with pytest.raises(AssertionError):
        same(expected, other)
    first = [name for name in expected if name[0] == 1]  # the only step with the same version
    assert [other[name][0][1] for name in first] == [expected[name][0][1] for name in first]


@pytest.mark.long
@pytest.mark.parametrize("process", ["inside", "own"])
def test_a_pinned_run_that_was_killed_and_resumed_equals_the_oracle(tmp_path, expected, process):
    """vLLM gets the older version again from the checkpoint."""
    folder, rows = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    words = [*SETTINGS, f"engine.process={process}", f"schedule.max_staleness={AHEAD}"]
    words += ["schedule.record_every=1", "schedule.checkpoint_every=1", "--scale", NAMED["scale"]]
    words += ["--with", ",".join(NAMED["overlays"]), "--out", str(folder)]
    run = command("run", "plan_path", *words)
    while not rows.exists() or rows.read_text().count("\n") < 2:
        assert run.poll() is None, run.communicate()[0]
        time.sleep(0.002)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    assert run.returncode == -signal.SIGKILL and len(rows.read_text().splitlines()) < STEPS
    resumed = command("run", "--resume", str(folder))
    said, _ = resumed.communicate(timeout=400)
    assert resumed.returncode == 0 and len(rows.read_text().splitlines()) == STEPS, said
    same(expected, recorded(folder))


def command(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "coterie", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
