"""N steps = k steps + resume, bit for bit; also after `kill -9` at a random moment."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import coterie
from coterie.core.checkpoint import CheckpointStore

HERE = Path(__file__).parent
MATRIX = str(HERE / "recipes" / "matrix.yaml")
TINY = ["schedule.steps=6", "schedule.checkpoint_every=1", "schedule.evaluate_every=3"]


def rows(folder: Path) -> list[dict[str, object]]:
    """metrics.jsonl without what depends on the machine."""
    return [
        {
            name: value
            for name, value in json.loads(line).items()
            if name.split("/")[0] not in ("time", "machine")
        }
        for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


def weights(folder: Path) -> dict[str, str]:
    latest = CheckpointStore(folder / "checkpoints", keep=99).latest()
    assert latest is not None
    return {"step": latest.step, **latest.meta["weights"]}


def rollouts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "rollouts").glob("*.jsonl"))}


def same(one: Path, other: Path) -> None:
    assert rows(one) == rows(other)
    assert weights(one) == weights(other)
    assert rollouts(one) == rollouts(other)


@pytest.mark.parametrize(
    "source",
    [(MATRIX, None, []), ("plan_path", "smoke", TINY), ("plan_path_per_role", "smoke", TINY)],
    ids=["tabular", "torch", "per_role"],
)
def test_n_steps_are_k_steps_and_resume(tmp_path, source):
    recipe, scale, overrides = source
    whole = coterie.train(
        recipe, scale=scale, overrides=[*overrides, "schedule.steps=5"], out=tmp_path / "whole"
    )
    part = coterie.train(
        recipe, scale=scale, overrides=[*overrides, "schedule.steps=2"], out=tmp_path / "part"
    )
    assert part.finished and part.step == 2
    rest = coterie.train(resume=tmp_path / "part", overrides=["schedule.steps=5"])
    assert rest.step == whole.step == 5
    same(tmp_path / "whole", tmp_path / "part")


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    coterie.train(MATRIX, out=tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    again = coterie.train(resume=tmp_path / "run")
    assert again.finished and (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_two_runs_of_one_seed_are_the_same_and_of_two_seeds_are_not(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        coterie.train(MATRIX, overrides=[f"seed={seed}"], out=tmp_path / name)
    same(tmp_path / "a", tmp_path / "b")
    assert weights(tmp_path / "a") != weights(tmp_path / "c")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    start = time.perf_counter()
    run(folder, "run", "plan_path", "--scale", "smoke", *TINY, "--out", str(folder))
    return folder, time.perf_counter() - start


def command(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "coterie", *arguments],
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def run(folder: Path, *arguments: str) -> None:
    process = command(*arguments)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors


def killed_and_resumed(tmp_path: Path, uninterrupted: tuple[Path, float], seed: int) -> None:
    """Kill -9 at a random moment after the folder was made, as often as it takes to end."""
    whole, seconds = uninterrupted
    folder, rng = tmp_path / "run", random.Random(seed)
    process = command("run", "plan_path", "--scale", "smoke", *TINY, "--out", str(folder))
    while not (folder / "config.yaml").exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    # From here to the end takes about a second or two; the import of torch before it is not of interest.
    time.sleep(rng.uniform(0, max(0.3, seconds / 3)))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    run(folder, "run", "--resume", str(folder))
    same(whole, folder)


@pytest.mark.xdist_group("resume")
@pytest.mark.parametrize("seed", range(5))
def test_a_run_that_was_killed_resumes_to_the_same_end(tmp_path, uninterrupted, seed):
    killed_and_resumed(tmp_path, uninterrupted, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 120))
def test_twenty_runs_that_were_killed_resume_to_the_same_end(tmp_path, uninterrupted, seed):
    killed_and_resumed(tmp_path, uninterrupted, seed)
