"""Engines and trainers together: runs of the quickstart, in which what is trained is what is played."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import engines
import pytest

pytestmark = pytest.mark.scale
pytest.importorskip("vllm", reason="runs in the venv of `make test-scale`")

ROOT = Path(__file__).resolve().parents[2]
STEPS = 8
SHORT = (
    f"schedule.steps={STEPS}",
    "schedule.tasks_per_step=4",
    "schedule.evaluate_every=0",
    "schedule.record_every=0",
    "policies.*.warm_start.steps=20",
    "policies.*.warm_start.batch=128",
)
VLLM = ("engine.type=vllm", "engine.kv_gib=0.25")
PAIRS = {
    "deepspeed": ("trainer.type=deepspeed",),
    "deepspeed, 2 ranks": ("trainer.type=deepspeed", "trainer.ranks=2"),
    "torch, 2 ranks": ("trainer.ranks=2",),
    "vllm, deepspeed, adapters": (
        *VLLM, "trainer.type=deepspeed", "trainer.stage=2", "--with", "per_role,l1",
    ),
    "vllm, deepspeed stage 3": (*VLLM, "trainer.type=deepspeed", "trainer.stage=3"),
    "vllm, torch, 2 ranks": (*VLLM, "trainer.ranks=2"),
}  # fmt: skip
"""Settings, by engine and trainer; `hf` and `torch` where none is named. `vllm` and `torch`: test_vllm.py."""


def run(settings: tuple[str, ...], folder: Path) -> list[dict[str, float]]:
    """The metrics of a run's steps."""
    words = ["run", "quickstart", *SHORT, *settings, "--out", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "coterie", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


LONG = ("deepspeed", "torch, 2 ranks", "vllm, deepspeed stage 3", "vllm, torch, 2 ranks")
"""Pairs whose parts others have, too."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in PAIRS]
)
def test_steps_play_what_is_trained(name: str, tmp_path: Path):
    """A sync that is lost, late or wrong shows in the log-probs: engine and trainer would disagree."""
    rows = run(PAIRS[name], tmp_path / "run")
    assert len(rows) == STEPS
    compared: Counter[str] = Counter()
    for step, row in enumerate(rows):
        for key in row:
            if not key.endswith("/mismatch"):
                continue  # a step without an advantage has no gradient, and compares nothing
            policy = key.removesuffix("/mismatch")
            compared[policy] += 1
            assert row[key] < 1e-5 and row[f"{policy}/mismatch_max"] < 1e-4, (step, policy)
            assert not row.get(f"{policy}/stale_samples") and row[f"{policy}/grad_norm"] > 0, (step, policy)
    assert compared and min(compared.values()) >= STEPS // 4, compared


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_the_quickstart_learns_with_every_engine_and_trainer(tmp_path: Path):
    """Runs every job of `benchmarks/engines.py`, which exits with 1 where one learns less than it must."""
    results = tmp_path / "engines.json"
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "engines.py"), "--json", str(results)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(json.loads(results.read_text())["jobs"]) == {job.name for job in engines.jobs([0, 1, 2])}
