"""The main job really learns. Seeds 1 and 2 are run by `make test-long`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


def quickstart(tmp_path, seed):
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "quickstart", "--seed", str(seed), "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "curve.png").stat().st_size > 10_000
    assert done.stdout.count("\ntask test-") == 3
    return json.loads(done.stdout.strip().splitlines()[-1])


def learned(curve):
    for key in ("success", "success_greedy"):
        before, after = curve["before"][key], curve["after"][key]
        assert after["mean"] - before["mean"] >= 0.35, (key, before, after)
        assert after["ci95"][0] > before["ci95"][1], "the intervals are disjoint"
        assert before["n"] == after["n"] == 1000


@pytest.mark.learning
@pytest.mark.timeout(600)
def test_the_quickstarts_team_learns(tmp_path):
    learned(quickstart(tmp_path, 0))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
def test_it_learns_on_other_seeds(tmp_path, seed):
    learned(quickstart(tmp_path, seed))
