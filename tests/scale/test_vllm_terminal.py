"""A start of vLLM leaves the terminal to Coterie: what vLLM, torch and C++ print is in the run's logs."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.scale, pytest.mark.xdist_group("vllm"), pytest.mark.timeout(600)]
pytest.importorskip("vllm", reason="runs in the venv of `make test-scale`")

SETTINGS = (
    "engine={type: vllm, kv_gib: 0.05}", "schedule.steps=1", "schedule.tasks_per_step=1",
    "sampler.branches=2", "schedule.evaluate_every=0", "policies.*.warm_start=null",
)  # fmt: skip
OURS = re.compile(r"writing to .*|loaded in .*|step 1/1 .*|(note|info): .*|warning: .*|")
FOREIGN = re.compile(r"NUMA|Triton|FutureWarning|WARNING \d\d-\d\d|vllm/")


@pytest.mark.parametrize(
    ("process", "log"),
    [
        ("inside", "libraries"),
        pytest.param("own", "vllm-shared-0", marks=pytest.mark.long),  # test_vllm_end.py has it, too
    ],
)
def test_a_run_prints_no_foreign_line_and_keeps_them_in_its_logs(tmp_path, process, log):
    out = tmp_path / "run"
    command = (
        "run",
        "plan_path",
        "--scale",
        "cpu",
        *SETTINGS,
        f"engine.process={process}",
        "--out",
        str(out),
    )
    done = subprocess.run(
        [sys.executable, "-m", "coterie", *command], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert all(OURS.fullmatch(line.strip()) and not FOREIGN.search(line) for line in lines), done.stderr
    assert re.fullmatch(rf"{out}  step 1/1  trained for \S+\n", done.stdout)
    text = (out / "logs" / f"{log}.log").read_text()
    assert FOREIGN.search(text), "they were printed, and kept"
