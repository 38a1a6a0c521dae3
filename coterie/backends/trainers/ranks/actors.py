"""Ranks as actors of a Ray cluster, on any of its nodes. Each serves rank 0 as the rank program does.

Rank 0 is the run's process. On GPUs each rank has one that Ray gives to it. Rank 0's is reserved on its node,
with the room of the run (`backends/cluster/reservation.py`): no other process of the cluster gets it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from functools import partial
from typing import Any, NamedTuple

from coterie.backends.cluster.code import Code, own_code, use_code
from coterie.backends.cluster.connection import Connection
from coterie.backends.cluster.placement import RUN
from coterie.backends.cluster.wire import answered, unwrapped
from coterie.backends.trainers.ranks import commands, group
from coterie.backends.trainers.ranks.group import Group, RankLost
from coterie.backends.trainers.ranks.network import hang_up
from coterie.core.errors import ConfigError

_PLACED = 300.0
"""Seconds for which a rank may wait for its resources."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class Opened(NamedTuple):
    """Where an actor is."""

    pid: int
    node: str
    """Ray's id of it."""
    host: str
    address: str
    log: str
    """The file of its output on that host."""
    gpus: list[str]
    """Those that Ray has given to it, as `CUDA_VISIBLE_DEVICES` names them."""


class RankActor:
    """A rank in a process of its own. A Ray actor."""

    process = "a rank's process"

    @answered
    async def open(self, code: Code) -> Opened:
        """Import what the run's process does.

        Raises:
            ConfigError: this node has other versions.
        """
        opened = _opened()
        if not opened.gpus:  # Ray may leave all GPUs of the node to it, and rank 0 computes on a CPU
            os.environ[_VISIBLE] = ""
        use_code(code)
        return opened

    async def join(self, host: str, port: int, key: bytes, number: int, local: int) -> None:
        """Serve rank 0; the process ends with that."""
        os.environ["LOCAL_RANK"] = str(local)
        logging.basicConfig(format=f"rank {number}: %(message)s", level=logging.WARNING)
        connection = await asyncio.to_thread(group.connect, host, port, key, number, local)
        loop, served = asyncio.get_running_loop(), asyncio.Event()

        def end(code: int) -> None:
            loop.call_soon_threadsafe(served.set)
            time.sleep(commands.LATE)  # Ray ends the process before, and reports no crash then
            os._exit(code)

        threading.Thread(target=commands.serve, args=(connection, number, end), name="serve").start()
        await served.wait()
        import ray

        ray.actor.exit_actor()


def _opened() -> Opened:
    import ray

    context = ray.get_runtime_context()
    gpus = [str(gpu) for gpu in context.get_accelerator_ids().get("GPU", [])]
    log = os.readlink("/proc/self/fd/2") if os.path.exists("/proc/self/fd/2") else "Ray's logs"
    node, address = context.get_node_id(), ray.util.get_node_ip_address()
    return Opened(os.getpid(), node, socket.gethostname(), address, log, gpus)


class ActorProcess:
    """A rank's actor, as rank 0 has it."""

    def __init__(self, connection: Connection, actor: Any, opened: Opened, serving: Any) -> None:
        self._connection, self._actor, self._serving = connection, actor, serving
        self._address = opened.address
        self.name = f"process {opened.pid} on node {opened.host}"
        self.log = f"{opened.log} on node {opened.host}"

    def ended(self, seconds: float = 0.0) -> str:
        ray = self._connection.ray
        if not ray.is_initialized():  # it would start a cluster, to wait there
            return f"ended ({self.name})"
        try:
            if not ray.wait([self._serving], timeout=seconds)[0]:
                return ""
            ray.get(self._serving)
        except ray.exceptions.RayError as error:
            return f"ended ({self.name}): {_reason(error)}"
        return f"ended ({self.name})"

    def kill(self) -> None:
        if self._connection.ray.is_initialized():
            self._connection.remove(self._actor)
        if self._address != self._connection.ray.util.get_node_ip_address():
            hang_up(self._address)  # its node may be gone


def _index(gpu: str, visible: str | None) -> int:
    """The index of a GPU of Ray's among those that this process sees."""
    if visible is None:
        return int(gpu)
    seen = visible.split(",")
    if gpu not in seen:
        raise ConfigError(
            f"Ray has given GPU {gpu} to rank 0, and the run's process doesn't see it",
            path="trainer.ranks",
            why=f"{_VISIBLE} is {visible}",
            fix=f"start the run with the {_VISIBLE} of its node's `ray start`, or unset it",
        )
    return seen.index(gpu)


def _reason(error: Exception) -> str:
    """What Ray knows of an actor's end, without its advice."""
    text = str(error).strip()
    _, because, rest = text.partition("because ")
    return (rest if because else text.splitlines()[-1]).partition(". ")[0].strip().rstrip(".")


class RanksOnCluster:
    """The other ranks of a trainer, on a cluster.

    Args:
        gpus: whether they compute on GPUs.
    """

    def __init__(self, connection: Connection, *, gpus: bool) -> None:
        self._connection, self._gpus = connection, gpus
        self._actors: list[Any] = []
        """Of the ranks, by number from 1."""

    def start(self, world: int) -> Group:
        """Start the other ranks.

        Raises:
            ConfigError: a node has other versions, or the run's node has no GPU for rank 0.
            RankLost: one of them could not start.
        """
        connection = self._connection
        ours = connection.ray is None  # the trainer is open without an engine, which disconnects otherwise
        connection.open()
        try:
            here = connection.ray.get_runtime_context().get_node_id()
            own_gpu = self._own_gpu() if self._gpus else 0
            opened = self._open(world)
            nodes = [here, *(each.node for each in opened)]
            host = str(connection.ray.util.get_node_ip_address())

            def spawn(number: int, port: int, key: bytes) -> ActorProcess:
                actor = self._actors[number - 1]
                local = 0 if self._gpus else nodes[:number].count(nodes[number])  # it sees its own GPU alone
                serving = actor.join.remote(host, port, key, number, local)
                return ActorProcess(connection, actor, opened[number - 1], serving)

            ranks = group.greeted(host, world, spawn)
        except BaseException:
            self._end(ours)
            raise
        return Group(ranks, host, lasting=False, local=own_gpu, closed=partial(self._end, ours))

    def _open(self, world: int) -> list[Opened]:
        """Place the actors of all other ranks."""
        connection, ray, code = self._connection, self._connection.ray, own_code()
        opening = []
        for number in range(1, world):
            actor = connection.actor(RankActor, name=f"rank {number}")
            self._actors.append(actor)
            opening.append(actor.open.remote(code))
        ready, waiting = ray.wait(opening, num_returns=len(opening), timeout=_PLACED)
        if waiting:
            raise RankLost(
                f"rank {opening.index(waiting[0]) + 1} has not started within {_PLACED:.0f} seconds",
                path="trainer.ranks",
                why="its room is reserved; its node may be gone",
                fix="`ray status` says which nodes there are; resume the run",
            )
        try:
            return [unwrapped(answer) for answer in ray.get(ready and opening)]
        except ray.exceptions.RayError as error:
            raise RankLost(f"a rank could not start: {_reason(error)}", path="trainer.ranks") from error

    def _own_gpu(self) -> int:
        """The index of rank 0's GPU among those that this process sees."""
        gpus = self._connection.gpus_of(RUN)
        if not gpus:
            raise ConfigError(
                "the run's node has no GPU for rank 0, as far as Ray knows",
                path="trainer.ranks",
                why="cluster.rank_gpus is 0, or `ray start` counted no GPU there",
                fix="start the run on a node with a GPU for it, or set trainer.device=cpu",
            )
        return _index(gpus[0], os.environ.get(_VISIBLE))

    def _end(self, disconnect: bool) -> None:
        """Kill what is left."""
        for actor in self._actors:
            self._connection.remove(actor)
        self._actors = []
        if disconnect:
            self._connection.close()
