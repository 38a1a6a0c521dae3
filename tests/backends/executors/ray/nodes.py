"""A Ray cluster of several nodes on this machine, and faults of its processes, for tests."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from coterie.backends.cluster.connection import QUIET
from coterie.backends.engines.tabular import TabularEngine
from coterie.backends.executors.ray.executor import RayExecutor
from coterie.backends.executors.ray.hosted_engine import HostedEngine
from coterie.core.types import Action, Call, Request, Step
from tests.games import Matrix


def wait_for(true: Callable[[], Any], seconds: float, what: str = "it") -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what} took longer than {seconds:g} s"
        time.sleep(0.1)


def parents() -> dict[int, int]:
    """The parent of every process."""
    found = {}
    for folder in Path("/proc").iterdir():
        with suppress(OSError, IndexError, ValueError):
            found[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def name_of(pid: int) -> str:
    """What a process calls itself; empty: it is gone, or a zombie."""
    with suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_text().replace("\0", " ")
    return ""


class Nodes:
    """A head for the run and the engine, with a declared GPU, and two nodes with four CPUs for the hosts."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
        head = {"num_cpus": 2, "num_gpus": 1, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self.cluster.address
        self.settings = [f"cluster.address={self.address}", "cluster.engine_gpus=1"]
        """Of a run on this cluster: its engine is on the head, and no host is."""
        self._joined: list[subprocess.Popen[bytes]] = []
        for _ in range(2):
            self.add()

    def add(self, cpus: int = 4) -> Any:
        return self.cluster.add_node(num_cpus=cpus)

    def join(self, cpus: int, inside: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start a node with another view of the disk.

        Args:
            inside: a command that runs another one, such as `unshare ... sh -c '...; exec "$@"' sh`.
        """
        before = len(self.alive())
        program = "import sys; from ray.scripts.scripts import main; sys.exit(main())"
        arguments = ["start", f"--address={self.address}", f"--num-cpus={cpus}", "--num-gpus=0", "--block"]
        process = subprocess.Popen(
            [*inside, sys.executable, "-c", program, *arguments],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._joined.append(process)
        wait_for(lambda: len(self.alive()) > before, 60, "the start of a node")
        return process

    def leave(self, process: subprocess.Popen[bytes]) -> None:
        """End a node that has joined."""
        process.terminate()
        process.wait(30)
        self._joined.remove(process)

    def alive(self) -> list[str]:
        """The ids of the nodes that the cluster counts as alive."""
        import ray

        return [node["NodeID"] for node in ray.nodes() if node["Alive"]]

    def raylet(self, node: Any) -> int:
        """The process id of a node's raylet."""
        return int(node.all_processes["raylet"][0].process.pid)

    def of(self, pid: int) -> Any:
        """The node that has a worker process; None: it is the head's."""
        parent = parents().get(pid)
        return next((node for node in self.cluster.worker_nodes if self.raylet(node) == parent), None)

    def remove(self, node: Any) -> None:
        """End a node as a power cut would: its raylet and all workers, without a word."""
        raylet = self.raylet(node)
        workers = [pid for pid, parent in parents().items() if parent == raylet]
        for pid in [raylet, *workers]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.cluster.remove_node(node, allow_graceful=False)

    def actors(self) -> list[str]:
        """The names of all actors' processes of all nodes."""
        nodes = [self.cluster.head_node, *self.cluster.worker_nodes]
        raylets = {self.raylet(node) for node in nodes}
        names = [name_of(pid) for pid, parent in parents().items() if parent in raylets]
        return [name for name in names if "RolloutHost" in name or "EngineHost" in name]

    def close(self) -> None:
        import ray

        for process in [*self._joined]:
            self.leave(process)
        ray.shutdown()
        self.cluster.shutdown()


class Recording(TabularEngine):
    """Engine `tabular`, which writes down for which role each policy draws tokens."""

    class Config(TabularEngine.Config):
        record: str

    async def generate(self, request: Request) -> Call:
        with Path(self.config.record).open("a") as file:
            file.write(f"{request.key.role} {request.policy}\n")
        return await super().generate(request)


class Stuck(Matrix):
    """The matrix game, whose step never returns where a file can't be made, or for whoever makes it."""

    class Config(Matrix.Config):
        flag: str

    async def step(self, state: Any, actions: Mapping[str, Action], ctx: Any) -> Step:
        with suppress(FileExistsError):
            with suppress(FileNotFoundError):
                Path(self.config.flag).touch(exist_ok=False)
            while True:
                time.sleep(60)
        return await super().step(state, actions, ctx)


class Display:
    """A display of progress that keeps what says what processes do."""

    processes: Callable[[], Mapping[str, int]]

    def __call__(self, done: int, total: int, metrics: Any = None) -> None:
        self.total = total

    def follow(self, processes: Callable[[], Mapping[str, int]]) -> None:
        self.processes = processes


def in_play(monkeypatch: pytest.MonkeyPatch, share: int, what: Callable[[Any], bool]) -> list[Any]:
    """Do something to the host that gets the n-th share of jobs; returns the list that will have the host.

    Args:
        what: returns whether it did it; if not, the host of the next share is tried.
    """
    plain, hosts, shares = RayExecutor.hand, list[Any](), [0]

    async def hand(executor: RayExecutor, host: Any, jobs: list[Any]) -> None:
        shares[0] += 1
        if shares[0] >= share and not hosts and what(host):
            hosts.append(host)
        await plain(executor, host, jobs)

    monkeypatch.setattr(RayExecutor, "hand", hand)
    return hosts


def placed(monkeypatch: pytest.MonkeyPatch, nodes: Nodes) -> dict[str, Any]:
    """The nodes of all hosts of a run, by the names of the hosts, as they are opened."""
    plain, places = RayExecutor.new_host, dict[str, Any]()

    async def new_host(executor: RayExecutor) -> Any:
        host = await plain(executor)
        places[host.name] = nodes.of(host.pid)
        return host

    monkeypatch.setattr(RayExecutor, "new_host", new_host)
    return places


class Faults:
    """Kills and freezes hosts and the engine, one process at each of several moments.

    Moments are counted: a host gets jobs (the process is serving then), weights are loaded (syncing), a step
    has ended (idle).
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, planned: dict[int, tuple[str, int]]) -> None:
        self.planned, self.moments = planned, 0
        self.done: list[tuple[str, str, int]] = []
        """(process, its state, signal)"""
        self.executor: RayExecutor | None = None
        hand, load, faults = RayExecutor.hand, HostedEngine.load_weights, self

        async def handed(executor: RayExecutor, host: Any, jobs: list[Any]) -> None:
            faults.executor = executor
            faults.strike("serving", host)
            await hand(executor, host, jobs)

        async def loaded(engine: HostedEngine, weights: Any) -> None:
            loading = asyncio.ensure_future(load(engine, weights))
            await asyncio.sleep(0)
            faults.strike("syncing")
            await loading

        monkeypatch.setattr(RayExecutor, "hand", handed)
        monkeypatch.setattr(HostedEngine, "load_weights", loaded)

    def progress(self, *_: Any) -> None:
        self.strike("idle")

    def strike(self, state: str, host: Any = None) -> None:
        self.moments += 1
        if self.executor is None or self.moments not in self.planned:
            return
        victim, how = self.planned[self.moments]
        host = host or self.executor.hosts[0]
        with suppress(ProcessLookupError):  # it was gone before its death was known
            os.kill(self.pid_of(victim, host), how)
            self.done.append((victim, state, how))

    def pid_of(self, victim: str, host: Any) -> int:
        assert self.executor is not None
        return int(host.pid if victim == "host" else self.executor.engine.pid)
