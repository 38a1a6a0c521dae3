# ruff: noqa: E402 (torch is asked for first)
"""Whole runs on two ranks: metrics, estimators with annotations, resumes, torchrun, Ctrl-C, kills."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import coterie
from coterie.api.checkpoints import CheckpointStore
from coterie.core.errors import PluginError
from coterie.testing import check_trainer
from coterie.testing.support.building import build
from tests.backends.trainers.on_ranks import MisbehavingTrainer
from tests.backends.trainers.tiny import MODEL, opened, policy, samples, update

pytestmark = pytest.mark.scale

ROOT = Path(__file__).parents[2]
SMALL = (
    "schedule.tasks_per_step=6", "schedule.evaluate_every=0", "schedule.checkpoint_every=1",
    "schedule.record_every=0", "schedule.keep_checkpoints=9", "trainer.minibatch_size=48",
    "policies.shared.warm_start.steps=15", "policies.shared.warm_start.batch=64",
    "policies.shared.warm_start.warmup_steps=2", "policies.shared.warm_start.noise=0.3",
)  # fmt: skip
ALGORITHMS = {
    "at_grpo": (),
    "reinforce_pp": ("algorithm={type: reinforce_pp}", "sampler={chains: 4}"),
    "gae": ("algorithm={type: gae}", "sampler={chains: 4, branches: 1}", "env.team=potential"),
}


def run(folder: Path, *overrides: str, steps: int = 2, ranks: int = 1, resume: bool = False) -> Path:
    settings = [f"schedule.steps={steps}", f"trainer.ranks={ranks}", *overrides]
    if resume:
        coterie.train(overrides=settings, resume=folder)
    else:
        coterie.train("quickstart", overrides=[*SMALL, *settings], out=folder)
    return folder


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {name: value for name, value in json.loads(line).items() if not name.startswith("time/")}
        for line in lines
    ]


def alike(one: Path, two: Path) -> None:
    """The same games and samples, and the same numbers within what sums in another order differ by."""
    first, second = rows(one), rows(two)
    assert len(first) == len(second) > 1
    for before, after in zip(first, second, strict=True):
        assert set(before) == set(after)
        for name, value in before.items():
            near = pytest.approx(value, rel=1e-3, abs=2e-5) if isinstance(value, float) else value
            assert after[name] == near, (before["step"], name)
    assert sum(row["policy/shared/optimizer_steps"] for row in first) > 1


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run of an algorithm on one rank, made once."""
    made: dict[str, Path] = {}

    def of(algorithm: str) -> Path:
        if algorithm not in made:
            folder = tmp_path_factory.mktemp(algorithm) / "one"
            made[algorithm] = run(folder, *ALGORITHMS[algorithm], steps=3)
        return made[algorithm]

    return of


@pytest.mark.parametrize(
    "algorithm",  # at_grpo: the run that torchrun starts has the same, too
    [*(pytest.param(name, marks=pytest.mark.long) for name in ("at_grpo", "reinforce_pp")), "gae"],
)
def test_a_run_on_two_ranks_has_the_metrics_of_one(algorithm: str, one: Any, tmp_path: Path) -> None:
    alike(one(algorithm), run(tmp_path / "two", *ALGORITHMS[algorithm], steps=3, ranks=2))


def test_a_run_resumes_on_two_ranks_and_back_on_one(one: Any, tmp_path: Path) -> None:
    folder = run(tmp_path / "run", steps=1)
    for steps, ranks in ((2, 2), (3, 1)):
        before = CheckpointStore(folder / "checkpoints", keep=9).latest()
        run(folder, steps=steps, ranks=ranks, resume=True)
        assert before is not None and before.step == steps - 1
    alike(one("at_grpo"), folder)


# -------------------------------------------------------------------------------------------------- processes


def environment() -> dict[str, str]:
    path = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    )  # entry points may lie there
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def started(
    folder: Path, *program: str, steps: int = 500, ranks: int = 2, more: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """A run in a process group of its own, as a terminal starts it."""
    return subprocess.Popen(
        [sys.executable, *program, "run", "quickstart", *SMALL, f"schedule.steps={steps}",
         f"trainer.ranks={ranks}", *more, "--out", str(folder)],
        env=environment(), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def members(group: int) -> list[int]:
    """The processes of a process group that run."""
    living = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                living.append(int(entry.name))
    return living


def until(condition: Callable[[], Any], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(0.1)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run on two ranks in the middle of its steps."""
    few = ("policies.shared.warm_start.steps=2", "schedule.tasks_per_step=2")
    process = started(tmp_path / "run", "-m", "coterie", more=few)
    metrics = tmp_path / "run" / "metrics.jsonl"
    until(lambda: process.poll() is not None or (metrics.exists() and metrics.read_text()), 120)
    assert process.poll() is None and len(members(process.pid)) == 2
    yield process
    if members(process.pid):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_ctrl_c_finishes_the_step_and_leaves_nothing(running: subprocess.Popen[str], tmp_path: Path) -> None:
    os.killpg(running.pid, signal.SIGINT)  # to all ranks, as a terminal does
    _, messages = running.communicate(timeout=60)
    assert running.returncode == 130 and "not finished; go on with" in messages, messages
    assert "Traceback" not in messages and not members(running.pid)
    store = CheckpointStore(tmp_path / "run" / "checkpoints", keep=9)
    assert store.latest() is not None and store.latest().step == len(rows(tmp_path / "run"))  # type: ignore[union-attr]


def test_a_killed_rank_0_ends_the_others(running: subprocess.Popen[str]) -> None:
    running.kill()
    until(lambda: not members(running.pid), 5)


def test_torchrun_starts_the_same_program(one: Any, tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    program = (*torchrun, "-m", "coterie.backends.trainers.ranks")
    process = started(tmp_path / "run", *program, steps=3)
    try:
        _, messages = process.communicate(timeout=200)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, messages
    alike(one("at_grpo"), tmp_path / "run")


def test_a_used_port_is_an_error_that_names_it() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        world = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        done = subprocess.run(
            [sys.executable, "-m", "coterie.backends.trainers.ranks", "run", "quickstart"],
            env={**environment(), **world}, capture_output=True, text=True, timeout=100,
        )  # fmt: skip
    assert done.returncode == 1 and f"MASTER_PORT={port}" in done.stderr and "fix:" in done.stderr


def test_a_checkpoint_with_other_groups_and_in_bf16_and_an_error_on_one_rank(tmp_path: Path) -> None:
    table = {"p": policy(dtype="bfloat16"), "s": policy("lora", **{"from": "x"})}
    table["t"] = table["s"]  # until the weights are known, both have the initial weights of `x`
    one = opened({"p": policy()})
    ctx = replace(one.ctx, policies=table, needs=("values",))
    one = MisbehavingTrainer(MisbehavingTrainer.Config(device="cpu"))
    sources = [opened({name: policy()}, seed=seed) for seed, name in enumerate("st")]
    one.begin_with({name: source.weights(name) for name, source in zip("st", sources, strict=True)})
    asyncio.run(one.open(ctx))
    given = {name: samples(name) for name in table}
    update(one, given)
    one.save(tmp_path)
    two = MisbehavingTrainer(MisbehavingTrainer.Config(device="cpu", ranks=2))
    asyncio.run(two.open(ctx))
    assert len(two.bases()) == 2
    two.load(tmp_path)
    assert two.bases() == one.bases() and len(two.bases()) == 3
    assert two.digest() == one.digest()
    before, after = (update(each, given, 1) for each in (one, two))
    for name, metrics in before.items():
        assert after[name] == pytest.approx(metrics, rel=1e-3, abs=1e-4)
    masters = two.policies["p"].optimizer.masters()  # type: ignore[union-attr]
    assert all(master.dtype == torch.float32 for master in masters.values())
    two.commands.run("rank_misbehave", "raise")
    with pytest.raises(PluginError, match=r"loss\.clip_low: the loss is wrong") as raised:
        update(two, given, 2)
    assert raised.value.__notes__ == ["on rank 1"]
    asyncio.run(two.close())


def test_the_conformance_check_passes_on_two_ranks() -> None:
    check_trainer(
        lambda: build("trainer", {"type": "torch", "device": "cpu", "ranks": 2}),
        model=MODEL,
        token_ids=range(3, 7),
        policy={"optimizer": {"learning_rate": 1e-2}},
    )
