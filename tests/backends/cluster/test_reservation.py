"""The room of a run on Ray: three nodes of this machine, with GPUs that are declared and aren't there.

The tests share a cluster, which the last one leaves without a node.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.backends.cluster.connection import QUIET, Connection
from coterie.backends.cluster.placement import ClusterNode, place
from coterie.backends.cluster.processes import processes_of
from coterie.backends.cluster.settings import ClusterConfig
from coterie.core.config import RunConfig
from coterie.core.errors import ConfigError, UserError
from coterie.discovery.validation import validate
from coterie.recipes import load

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]

RECIPE = str(Path(__file__).with_name("three_sets.yaml"))
WIDE = ["engine.tensor_parallel=4", "trainer.ranks=2"]
"""2 + 3 x 4 of 16 GPUs: two and one replica on the first node, and one on each other."""


SIZES = ((9, 8), (4, 4), (4, 4))
"""CPUs and GPUs of the nodes; this process is on the first."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """The nodes of `SIZES`."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # the paths of Ray's sockets have to be short
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**QUIET, "RAY_TMPDIR": folder}.items():
            patch.setenv(name, value)
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        sizes = [{"num_cpus": cpus, "num_gpus": gpus} for cpus, gpus in SIZES]
        made = Cluster(initialize_head=True, head_node_args=sizes[0])
        try:
            for size in sizes[1:]:
                made.add_node(**size)
            ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
            yield made
        finally:
            ray.shutdown()
            made.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def _gpus_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two runs in one process only the last one can give back what it sees."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    del os.environ["CUDA_VISIBLE_DEVICES"]


def config(*overrides: str) -> RunConfig:
    return load(RECIPE, scale="gpu", overlays=["ray"], overrides=overrides).config


def connected(*overrides: str) -> Connection:
    run = config(*overrides)
    connection = Connection(validate(ClusterConfig, run.cluster, "cluster"), run)
    connection.open()
    return connection


def observer() -> type:
    """A class that travels by value: no worker can import this module."""

    class Observer:
        async def where(self) -> tuple[str, list[str], str]:
            import ray

            context = ray.get_runtime_context()
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            return context.get_node_id(), [str(gpu) for gpu in ray.get_gpu_ids()], visible

    return Observer


def where(connection: Connection, name: str) -> tuple[str, list[str], str]:
    handle = connection.actor(observer(), name=name)
    answer: tuple[str, list[str], str] = connection.ray.get(handle.where.remote(), timeout=60)
    return answer


def eventually(holds: Callable[[], bool], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not (done := holds()) and time.monotonic() < end:
        time.sleep(0.2)
    return done


def is_free(ray: Any) -> bool:
    """Whether nothing of the cluster is taken."""
    free, there = ray.available_resources(), ray.cluster_resources()
    return all(free.get(name, 0) == there.get(name, 0) for name in ("CPU", "GPU"))


def test_each_process_is_where_the_plan_says_and_nothing_stays(cluster: Any) -> None:
    import ray

    here = ray.get_runtime_context().get_node_id()
    ids = sorted((node["NodeID"] for node in ray.nodes()), key=lambda node: (node != here, node))
    nodes = [ClusterNode(name, cpus, gpus) for name, (cpus, gpus) in zip(ids, SIZES, strict=True)]
    run = config(*WIDE)
    settings: ClusterConfig = validate(ClusterConfig, run.cluster, "cluster")
    plan = place(nodes, processes_of(run, settings, nodes))
    connection = connected(*WIDE)
    taken = [(here, gpu) for gpu in connection.gpus_of("run")]
    assert len(taken) == 1
    assert os.environ["CUDA_VISIBLE_DEVICES"] == taken[0][1]  # of rank 0, which is this process
    for placed in plan:
        name = placed.process.name
        if name == "run":
            continue
        node, gpus, _ = where(connection, name)
        assert (name, node) == (name, placed.node)
        assert len(gpus) == len(placed.gpus) and gpus == [*connection.gpus_of(name)]
        taken += [(node, gpu) for gpu in gpus]
    assert len(taken) == len(set(taken)) == 2 + 3 * 4
    connection.close()
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert eventually(lambda: is_free(ray))
    assert {group["state"] for group in ray.util.placement_group_table().values()} == {"REMOVED"}


def test_replicas_that_share_see_the_gpus_of_their_ranks(cluster: Any) -> None:
    import ray

    connection = connected("cluster.layout=colocate", "engine.tensor_parallel=2", "trainer.ranks=2")
    owned = [*connection.gpus_of("run"), *connection.gpus_of("rank 1")]
    assert len(set(owned)) == 2
    for name in ("vllm data_engineer/0", "vllm modeler/0", "vllm analyst/0"):
        node, gpus, visible = where(connection, name)
        assert node == ray.get_runtime_context().get_node_id() and gpus == []  # none by Ray's count
        assert visible.split(",") == owned
    connection.close()


@pytest.mark.long
def test_two_runs_have_no_gpu_together_and_a_third_waits_for_room(cluster: Any) -> None:
    """5 GPUs each: 8 of them on this process's node, where a third run's process has no room, too."""
    five = ["trainer.ranks=2"]
    first, second = connected(*five), connected(*five)
    names = ["run", "rank 1", *(f"vllm {name}/0" for name in ("data_engineer", "modeler", "analyst"))]
    for name in names:
        assert len(first.gpus_of(name)) == len(second.gpus_of(name)) == 1
    owned = [(where(run, name)[0], run.gpus_of(name)[0]) for run in (first, second) for name in names[1:]]
    assert len(set(owned)) == 8
    assert first.gpus_of("run") != second.gpus_of("run")  # both are on the node of this process
    with pytest.raises(UserError, match="others have taken them") as refused:
        connected(*five, "cluster.timeout=2")
    assert "the run takes 8 CPUs and 5 GPUs" in refused.value.what
    assert refused.value.why is not None
    assert refused.value.why.count("has") == 3 and "GPU" in refused.value.why
    first.close()
    third = connected(*five)
    third.close()
    second.close()


def test_a_run_that_no_time_brings_room_for_is_refused_at_once(cluster: Any) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError) as refused:
        connected("engine.replicas=2", "engine.tensor_parallel=4")
    assert time.monotonic() - began < 30
    assert refused.value.path == "engine.replicas"
    assert "25 GPUs, and the cluster has 17 CPUs and 16 GPUs on 3 nodes" in refused.value.what


PROGRAM = """
import sys, time
from coterie.backends.cluster.connection import Connection
from coterie.backends.cluster.settings import ClusterConfig
from coterie.discovery.validation import validate
from coterie.recipes import load
run = load(sys.argv[1], scale="gpu", overlays=["ray"], overrides=[f"cluster.address={sys.argv[2]}"]).config
connection = Connection(validate(ClusterConfig, run.cluster, "cluster"), run)
connection.open()
print("open", flush=True)
time.sleep(600)
"""


def test_the_room_of_a_killed_run_is_free_again(cluster: Any) -> None:
    import ray

    run = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, RECIPE, cluster.address], stdout=subprocess.PIPE, text=True
    )
    try:
        assert run.stdout is not None and run.stdout.readline() == "open\n"
        assert eventually(lambda: ray.available_resources().get("GPU") == 16 - 4)
        run.send_signal(signal.SIGKILL)
        assert eventually(lambda: is_free(ray))
    finally:
        run.kill()
        run.wait()


@pytest.mark.long
def test_what_is_started_again_after_its_node_died_is_elsewhere(cluster: Any) -> None:
    import ray

    connection = connected(*WIDE, "cluster.workers=8")
    here = ray.get_runtime_context().get_node_id()
    placed = connection.reservation.placed  # type: ignore[union-attr]
    dead = next(each.node for each in placed.values() if each.node != here)
    lost = [name for name, each in placed.items() if each.node == dead and not each.process.gpus]
    kept = next(name for name, each in placed.items() if name != "run" and each.node not in (here, dead))
    assert lost
    (node,) = [each for each in cluster.list_all_nodes() if each.node_id == dead]
    cluster.remove_node(node, allow_graceful=False)
    assert eventually(lambda: not any(each["NodeID"] == dead and each["Alive"] for each in ray.nodes()))
    for name in lost:
        assert where(connection, name)[0] != dead
    assert where(connection, kept)[0] == placed[kept].node
    assert where(connection, "rollout host 9")[0] != dead  # in place of one of the eight
    connection.close()
