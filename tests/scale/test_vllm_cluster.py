"""Engine `vllm` on a cluster: each replica is a Ray actor. Log-probs after each sync, deaths, a whole run."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.scale, pytest.mark.xdist_group("vllm_cluster"), pytest.mark.timeout(900)]
pytest.importorskip("vllm", reason="runs in the venv of `make test-scale`")
pytest.importorskip("ray")

import coterie  # noqa: E402
from coterie.backends.cluster.hosts import Actors  # noqa: E402
from coterie.backends.cluster.settings import ClusterConfig  # noqa: E402
from coterie.backends.engines.vllm.replica_actor import ReplicaActor  # noqa: E402
from tests.backends.engines.replica_fakes import folders_of, gone, running  # noqa: E402
from tests.ray_cluster import local_cluster  # noqa: E402
from tests.scale.fake_plugin import ROOT, with_fake_transfer  # noqa: E402
from tests.scale.train_on_cluster import plugin_of  # noqa: E402
from tests.scale.vllm_models import LONG, LORA, TOLERANCE, Playing, adapted, mixed, module, request  # noqa: E402

SILENT = 15
"""Seconds without an answer after which a replica counts as dead."""


@pytest.fixture(scope="module")
def cluster():
    with local_cluster(8) as ray:
        yield ray


class Timed(Actors):
    """Starts actors, and knows when."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(ClusterConfig(**{"replica_cpus": 0.5, **settings}))
        self.starts: list[float] = []

    def actor(self, cls: type, **named: Any) -> Any:
        assert cls is ReplicaActor
        self.starts.append(time.monotonic())
        return super().actor(cls, **named)


def opened(runner: asyncio.Runner, playing: Playing, **settings: Any) -> Any:
    playing.engine.use_actors(Timed(**settings))
    runner.run(playing.open())
    began = [server.began for server in servers(playing)]
    folders = [folder for each in began for folder in folders_of(each.pid)]
    assert folders
    yield playing
    pids = [pid for server in servers(playing) for pid in tree(server.began.pid)]
    runner.run(playing.engine.close())
    assert gone(pids, 30)
    assert not any(folder.exists() for folder in folders)


def servers(playing: Playing) -> list[Any]:
    (base,) = playing.engine.loaded_bases.values()
    return base.replicas.servers


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and running(int(folder.name)):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def name_of(pid: int) -> str:
    """The command of a process; empty: it has ended."""
    with suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_text().replace("\0", " ")
    return ""


def works(pid: int) -> bool:
    """Whether a process is an actor or a vLLM; of Ray's other processes the cluster keeps some."""
    name = name_of(pid)
    return "VLLM" in name or ("ray::" in name and "ray::IDLE" not in name)


def shared_memory(pids: list[int]) -> set[str]:
    """Names of shared memory that processes have, and that outlives them unless it is removed."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return {Path(line.split()[-1]).name for line in lines if "/dev/shm/psm_" in line}


@pytest.fixture(scope="module")
def team(cluster, runner):
    """Two roles with adapters, and their frozen base, on two replicas inside their actors."""
    base = adapted(module(tied=True, seed=1), {"planner": 4, "worker": 12})
    modules = {"planner": (base, "planner"), "worker": (base, "worker"), "frozen": (base, None)}
    trains = {"planner": "lora", "worker": "lora", "frozen": "none"}
    yield from opened(runner, Playing(modules, trains, replicas=2, kv_gib=0.5), timeout=SILENT)


@pytest.fixture(scope="module")
def own(cluster, runner):
    """A policy with all weights trained, on a replica in processes of its own below its actor."""
    trained = {"tied": (module(tied=True, seed=2), None)}
    yield from opened(runner, Playing(trained, {"tied": "full"}, process="own", replicas=1, kv_gib=0.5))


def test_logprobs_of_roles_on_two_replicas_are_the_trainers_after_every_sync(runner, team):
    assert {type(server).__name__ for server in servers(team)} == {"ActorServer"}
    for _ in range(2):
        for policy in ("planner", "worker"):
            runner.run(team.update(policy, size=0.05))
        requests = mixed(LORA)
        for _ in range(2):  # the second time vLLM has the prefixes
            calls = runner.run(team.wave(requests))
            assert team.gap(requests, calls) < TOLERANCE
        versions = {request.policy: call.version for request, call in zip(requests, calls, strict=True)}
        assert versions["planner"] == team.versions["planner"]
        assert versions["worker"] == team.versions["worker"]


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)])
def test_a_replica_that_dies_or_freezes_in_play_serves_again_with_its_version(runner, team, caplog, how):
    """Within 30 s of its death, plus the time that vLLM takes to load."""
    caplog.set_level(logging.WARNING, "coterie")
    first, (base,) = servers(team)[0], team.engine.loaded_bases.values()
    actors, pid, restarts = first.actors, first.began.pid, base.replicas.restarts
    requests = [request(LORA[number % 3], LONG, number, max_new_tokens=150) for number in range(24)]

    async def play() -> tuple[Any, float, float]:
        playing = asyncio.ensure_future(team.wave(requests))
        await asyncio.sleep(0.5)
        assert base.replicas.router.in_flight[0]
        died = time.monotonic()
        os.kill(pid, how)
        calls = await playing
        while not first.alive or not base.has_newest(first):
            await asyncio.sleep(0.05)
        return calls, died, time.monotonic()

    calls, died, serves = runner.run(play())
    load = serves - actors.starts[-1]
    print(f"{how.name}: serves {serves - died:.1f} s after, of which {load:.1f} s are its start")
    assert team.gap(requests, calls) < TOLERANCE
    assert base.replicas.restarts == restarts + 1 and base.replicas.repeated
    assert serves - died - load < 30
    if how == signal.SIGSTOP:
        assert "replica 0 has not answered for 15 s" in caplog.text
    assert gone([pid], 10) and first.began.pid != pid
    again = mixed(LORA)
    for _ in range(2):
        assert team.gap(again, runner.run(team.wave(again))) < TOLERANCE


@pytest.mark.long
def test_logprobs_of_a_replica_in_processes_of_its_own_are_the_trainers_after_every_sync(runner, own):
    for _ in range(2):
        runner.run(own.update("tied", size=0.05))
        requests = [request("tied", LONG, number) for number in range(24)]
        requests += [request("tied", LONG[:9], number, temperature=1.5) for number in range(24)]
        calls = runner.run(own.wave(requests))
        assert own.gap(requests, calls) < TOLERANCE
        assert {call.version for call in calls} == {own.versions["tied"]}
        assert [server.version for server in servers(own)] == [own.versions["tied"]]


def test_a_killed_actor_takes_its_vllm_along_and_another_one_serves(runner, own):
    first = servers(own)[0]
    below = tree(first.began.pid)
    memory = shared_memory(below)
    assert len(below) >= 3  # the actor, vLLM's engine and its worker
    requests = [request("tied", LONG, number, max_new_tokens=100) for number in range(16)]
    (base,) = own.engine.loaded_bases.values()

    async def play() -> Any:
        playing = asyncio.ensure_future(own.wave(requests))
        await asyncio.sleep(0.5)
        os.kill(first.began.pid, signal.SIGKILL)
        calls = await playing
        assert await asyncio.to_thread(gone, below, 60)
        while not first.alive or not base.has_newest(first):
            await asyncio.sleep(0.05)
        return calls

    calls = runner.run(play())
    assert own.gap(requests, calls) < TOLERANCE
    end = time.monotonic() + 30
    while memory & set(os.listdir("/dev/shm")) and time.monotonic() < end:
        time.sleep(0.1)
    assert memory and not memory & set(os.listdir("/dev/shm"))


@pytest.mark.long
@pytest.mark.parametrize("way", ["nccl", "ipc"])
def test_weights_by_vllms_own_classes_reach_a_replica_and_the_one_in_its_place(tmp_path, way):
    """The trainer's process sends, the engine has names and shapes alone; a replica is killed between."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/scale/send_on_cluster.py"), way],
        env=with_fake_transfer(tmp_path),
        capture_output=True,
        text=True,
        timeout=800,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr[-4000:]
    result = json.loads(lines[0])
    assert len(result["gaps"]) == 4 and max(result["gaps"]) < TOLERANCE
    assert (result["way"], result["restarts"], result["orders"], result["new"]) == (way, 1, 5, True)


@pytest.mark.long
@pytest.mark.parametrize("updates", ["in_turn", "at_once"])
def test_a_whole_run_sends_its_weights_from_the_trainers_processes(tmp_path, updates):
    """Two policies that are trained whole: the run's process sends both, or each trainer its own."""
    done = subprocess.run(
        [
            *(sys.executable, str(ROOT / "tests/scale/train_on_cluster.py"), str(tmp_path / "run"), updates),
            str(plugin_of(tmp_path)),
        ],
        env=with_fake_transfer(tmp_path),
        capture_output=True,
        text=True,
        timeout=800,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr[-4000:]
    result = json.loads(lines[-1])
    assert result["steps"] == 2 and result["gaps"] and max(result["gaps"]) < 1e-4
    assert result["senders"] == (1 if updates == "in_turn" else 2)
    assert {policy for policy, version in result["sent"] if version} == {"planner", "executor"}


RUN = [
    "schedule.steps=2", "schedule.tasks_per_step=4", "schedule.evaluate_every=0", "schedule.record_every=0",
    "policies.*.warm_start.steps=20", "policies.*.warm_start.batch=128", "engine.type=vllm",
    "engine.replicas=2", "engine.kv_gib=0.5", "cluster.replica_cpus=0.5", "cluster.worker_cpus=0.5",
]  # fmt: skip


def test_a_whole_run_has_its_replicas_on_the_cluster(cluster, tmp_path):
    """Two roles with adapters of one base: tokens of the replicas are what the trainer computes."""
    before = set(tree(os.getpid()))
    coterie.train("quickstart", overlays=["per_role", "l1", "ray"], overrides=RUN, out=tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    gaps = [value for row in rows for name, value in row.items() if name.endswith("/mismatch_max")]
    assert len(rows) == 2 and gaps and max(gaps) < 1e-4, rows
    left = [pid for pid in set(tree(os.getpid())) - before if works(pid)]
    assert gone(sorted(left), 60), [name_of(pid) for pid in left]
