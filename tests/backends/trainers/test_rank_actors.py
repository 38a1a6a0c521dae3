"""Ranks as actors of a Ray cluster of two nodes: the results of ranks on one host, and what faults do."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.backends.cluster.connection import QUIET, Connection
from coterie.backends.cluster.settings import ClusterConfig
from coterie.backends.trainers.ranks import group as group_module
from coterie.backends.trainers.ranks.commands import RankCommands
from coterie.backends.trainers.ranks.group import RankGroup, RankLost
from coterie.backends.trainers.ranks.processes import ActorProcess, Opened, RanksOnCluster
from coterie.core.errors import ConfigError
from coterie.recipes import load
from tests.backends.trainers.rank_targets import Target
from tests.backends.trainers.test_rank_program import ROOT, ends
from tests.test_resume import same

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.xdist_group("ray")]

PLAN = ["schedule.tasks_per_step=4", "schedule.steps=2", "schedule.checkpoint_every=1",
        "schedule.evaluate_every=0", "loss.entropy=0.3", "deterministic=true", "trainer.ranks=2"]  # fmt: skip


@dataclass
class Nodes:
    """The run's node and another one. Ray believes that both have GPUs."""

    ray: Any
    cluster: Any
    here: str
    other: str


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": 2})
        other = cluster.add_node(num_cpus=6, num_gpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        yield Nodes(ray, cluster, ray.get_runtime_context().get_node_id(), other.node_id)
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[Opened]:
    """The ranks that were started, as they are."""
    plain, all_opened = RanksOnCluster.start, list[Opened]()

    def noted(ranks: RanksOnCluster, world: int) -> RankGroup:
        group = plain(ranks, world)
        for rank in group.ranks:
            assert isinstance(rank.process, ActorProcess)
            all_opened.append(rank.process.opened)
        return group

    monkeypatch.setattr(RanksOnCluster, "start", noted)
    return all_opened


def connection(**settings: Any) -> Connection:
    return Connection(ClusterConfig(workers=1, **settings))


def made(ranks: int = 2, **settings: Any) -> RankCommands:
    """Targets on a cluster, without torch and a GPU."""
    on_cluster = RanksOnCluster(connection(**settings), lambda: False)
    commands = RankCommands(Target(0), on_cluster.start(ranks))
    commands.make(Target)
    return commands


# ------------------------------------------------------------------------------------------------ whole runs


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with two ranks on this host."""
    folder = tmp_path_factory.mktemp("local") / "run"
    coterie.train("plan_path", scale="smoke", overrides=PLAN, out=folder)
    return folder


def on_ray(folder: Path, *more: str) -> None:
    overrides = [*PLAN, "cluster.workers=1", *more]
    coterie.train("plan_path", scale="smoke", overlays=["ray"], overrides=overrides, out=folder)


def test_a_rank_on_another_node_gives_the_run_of_two_ranks_on_one_host(nodes, local, placed, tmp_path):
    on_ray(tmp_path / "ray", "cluster.rank_cpus=3")  # the run's node has 4
    assert [each.node for each in placed] == [nodes.other]
    same(local, tmp_path / "ray")
    coterie.export(tmp_path / "ray", "shared", tmp_path / "model")  # opens the trainer alone
    assert len(placed) == 2 and all(ends(each.pid) for each in placed)


def in_update(monkeypatch: pytest.MonkeyPatch, step: int, what: Any) -> None:
    """Do something in rank 0's update of a step, before it meets the other ranks there."""
    from coterie.backends.trainers.torch_trainer import TorchTrainer

    plain = TorchTrainer.rank_update

    def update(trainer: TorchTrainer, samples: Any, at: int) -> Any:
        if at == step:
            what()
        return plain(trainer, samples, at)

    monkeypatch.setattr(TorchTrainer, "rank_update", update)


@pytest.mark.long
def test_a_killed_rank_ends_the_run_by_name_and_a_resume_goes_on(nodes, local, placed, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        in_update(patch, 1, lambda: os.kill(placed[0].pid, signal.SIGKILL))
        with pytest.raises(RankLost) as raised:
            on_ray(tmp_path / "ray")
    where = f"process {placed[0].pid} on node {socket.gethostname()}"
    assert f"rank 1 ended ({where}): its worker process has died" in str(raised.value)
    assert raised.value.path == "trainer.ranks" and "worker-" in raised.value.fix
    coterie.train(resume=tmp_path / "ray")
    same(local, tmp_path / "ray")
    assert len(placed) == 2 and all(ends(each.pid) for each in placed)


@pytest.mark.long
def test_a_frozen_rank_is_given_up_in_the_middle_of_an_update(nodes, placed, monkeypatch):
    from coterie.backends.trainers.torch_trainer import TorchTrainer
    from tests.backends.trainers.tiny import opened, policy, samples, update

    monkeypatch.setattr(group_module, "ASK_SECONDS", 0.1)
    trainer = TorchTrainer(TorchTrainer.Config(device="cpu", ranks=2, patience=60))
    trainer.use_cluster(connection())
    asyncio.run(trainer.open(opened({"p": policy()}).ctx))
    update(trainer, {"p": samples("p")})

    def freeze() -> None:
        os.kill(placed[0].pid, signal.SIGSTOP)
        group_module.watch_over(trainer.commands.group, 1.0)

    in_update(monkeypatch, 1, freeze)
    began = time.monotonic()
    with pytest.raises(
        RankLost, match=r"rank 1 is given up: process \d+ on node .* has not answered for 1 s"
    ):
        update(trainer, {"p": samples("p")}, 1)
    assert time.monotonic() - began < 120
    asyncio.run(trainer.close())
    assert ends(placed[0].pid)


# ------------------------------------------------------------------------------------------- the rank program


def test_methods_and_errors_come_back_and_no_process_is_left(nodes, placed, capfd):
    commands = made(3, rank_cpus=2)
    (_, here), (number, there), (_, third) = commands.run("place")
    assert number == 1 and len({here, there, third}) == 3
    assert [rank.local for rank in commands.group.ranks] == [1, 2] or placed[0].node != placed[1].node
    assert commands.run("add", 2, others=(3,)) == [2, 4, 4]
    commands.close()
    assert ends(there) and ends(third)
    commands = made()
    pid = commands.group.ranks[0].pid
    with pytest.raises(ConfigError, match=r"trainer\.device: it is wrong") as raised:
        commands.run("refuse")
    assert raised.value.__notes__ == ["on rank 1"]
    commands.close()
    assert ends(pid) and capfd.readouterr().err == "", "Ray takes no end for a crash"


def test_each_rank_has_a_gpu_for_itself_and_no_other_process_gets_rank_0s(nodes, placed):
    settings = ["trainer.ranks=3", "cluster.workers=1"]
    run = load("plan_path", scale="smoke", overlays=["ray"], overrides=settings).config
    planned = Connection(ClusterConfig(workers=1), run)
    commands = RankCommands(Target(0), RanksOnCluster(planned, lambda: True).start(3))
    own = [(nodes.here, *planned.gpus_of("run"))]
    assert {*own, *((each.node, *each.gpus) for each in placed)} == {
        (nodes.here, "0"),
        (nodes.here, "1"),
        (nodes.other, "0"),
    }
    assert os.environ["CUDA_VISIBLE_DEVICES"] == own[0][1], "rank 0 sees its GPU alone"
    group = commands.group
    assert [group.local, *(rank.local for rank in group.ranks)] == [0, 0, 0], "so does each other rank"
    commands.close()
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_a_rank_on_a_cpu_sees_no_gpu(nodes):
    commands = made()
    assert commands.run("variable", "CUDA_VISIBLE_DEVICES")[1] == ""
    commands.close()


def test_a_killed_run_leaves_no_rank(nodes, tmp_path):
    file = tmp_path / "pid"
    address = nodes.ray.get_runtime_context().gcs_address
    script = f"""
        from tests.backends.trainers.test_rank_actors import made
        made(address={address!r}).run("write", {str(file)!r})
    """
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    run = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], env=env)
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    pid = int(file.read_text())
    run.kill()
    run.wait()
    assert ends(pid)


def test_a_rank_that_finds_no_room_is_named(nodes, monkeypatch):
    monkeypatch.setattr("coterie.backends.trainers.ranks.processes.ROOM_SECONDS", 1.0)
    with pytest.raises(RankLost, match="rank 1 has not started within 1 seconds") as raised:
        made(rank_cpus=7)  # no node has as many, and both together do
    assert "no node of the cluster has 7 CPUs left" in raised.value.why


def test_a_node_that_dies_ends_the_command_by_its_name(nodes, placed):
    """The last test of this file: the node is gone."""
    commands = made(rank_cpus=5)  # on the other node
    nodes.cluster.remove_node(nodes.cluster.list_all_nodes()[1], allow_graceful=False)
    with pytest.raises(RankLost, match=rf"rank 1 .*process {placed[0].pid} on node "):
        commands.run("sleep", 600.0)
    commands.close()
    assert ends(placed[0].pid)
