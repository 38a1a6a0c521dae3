"""Ranks as actors of a Ray cluster, on any of its nodes. Each serves rank 0 as the rank program does.

Rank 0 is the run's process. On GPUs each rank has one of its own, which the connection has reserved.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from coterie.backends.cluster.connection import Connection
from coterie.backends.trainers.ranks import commands, processes
from coterie.backends.trainers.ranks.group import RankGroup, RankLost

_PLACED = 300.0
"""Seconds for which a rank may wait for its resources."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SOCKETS = "/proc/self/fd"


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

    async def open(self, on_gpu: bool) -> Opened:
        """Where this actor is.

        Args:
            on_gpu: whether the ranks compute on GPUs.
        """
        import ray

        context = ray.get_runtime_context()
        gpus = [str(gpu) for gpu in context.get_accelerator_ids().get("GPU", [])]
        log = os.readlink("/proc/self/fd/2") if os.path.exists("/proc/self/fd/2") else "Ray's logs"
        node, address = context.get_node_id(), ray.util.get_node_ip_address()
        if not on_gpu:  # rank 0 has none, and Ray may leave all GPUs of the node to this one
            os.environ[_VISIBLE] = ""
        return Opened(os.getpid(), node, socket.gethostname(), address, log, gpus)

    async def join(self, host: str, port: int, key: bytes, number: int, local: int) -> None:
        """Serve rank 0; the process ends with that."""
        os.environ["LOCAL_RANK"] = str(local)
        logging.basicConfig(format=f"rank {number}: %(message)s", level=logging.WARNING)
        connection = await asyncio.to_thread(processes.connect, host, port, key, number, local)
        loop, served = asyncio.get_running_loop(), asyncio.Event()

        def end(code: int) -> None:
            loop.call_soon_threadsafe(served.set)
            time.sleep(commands.LATE)  # Ray ends the process before, and reports no crash then
            os._exit(code)

        threading.Thread(target=commands.serve, args=(connection, number, end), name="serve").start()
        await served.wait()
        import ray

        ray.actor.exit_actor()


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


def _reason(error: Exception) -> str:
    """What Ray knows of an actor's end, without its advice."""
    text = str(error).strip()
    _, because, rest = text.partition("because ")
    return (rest if because else text.splitlines()[-1]).partition(". ")[0].strip().rstrip(".")


def hang_up(address: str) -> None:
    """End all TCP connections of this process to an address.

    A node that loses its power closes none, and gloo would wait for it as long as for a slow rank.
    """
    for entry in os.listdir(_SOCKETS) if os.path.isdir(_SOCKETS) else ():
        with suppress(OSError), socket.socket(fileno=os.dup(int(entry))) as peer:  # most are no sockets
            if peer.type == socket.SOCK_STREAM and _host(peer.getpeername()) == address:
                peer.shutdown(socket.SHUT_RDWR)


def _host(name: object) -> str:
    """The address of a peer; an IPv4 address that is written as IPv6 is the same."""
    return str(name[0]).removeprefix("::ffff:") if isinstance(name, tuple) else ""


class RanksOnCluster:
    """The other ranks of a trainer, on a cluster.

    Args:
        on_gpu: whether they compute on GPUs; it is called once rank 0 sees no more than its own.
    """

    def __init__(self, connection: Connection, on_gpu: Callable[[], bool]) -> None:
        self._connection, self._on_gpu = connection, on_gpu
        self._actors: list[Any] = []
        """By number, from 1."""

    def start(self, world: int) -> RankGroup:
        """Start the other ranks.

        Raises:
            RankLost: one of them could not start.
        """
        connection = self._connection
        ours = connection.ray is None  # the trainer is open without an engine, which disconnects otherwise
        try:
            connection.open()
            here = connection.ray.get_runtime_context().get_node_id()
            opened = self._open(world)
            nodes = [here, *(each.node for each in opened)]
            host = str(connection.ray.util.get_node_ip_address())

            def spawn(number: int, port: int, key: bytes) -> ActorProcess:
                actor = self._actors[number - 1]
                # With a GPU of its own a rank sees no other one.
                local = 0 if opened[number - 1].gpus else nodes[:number].count(nodes[number])
                serving = actor.join.remote(host, port, key, number, local)
                return ActorProcess(connection, actor, opened[number - 1], serving)

            ranks = processes.greeted(host, world, spawn)
        except BaseException:
            self._end(ours)
            raise
        return RankGroup(ranks, host, lasting=False, closed=partial(self._end, ours))

    def _open(self, world: int) -> list[Opened]:
        """Place the actors of all other ranks."""
        connection, ray = self._connection, self._connection.ray
        on_gpu, cpus = self._on_gpu(), connection.settings.rank_cpus
        opening = []
        for number in range(1, world):
            actor = connection.actor(RankActor, cpus=cpus, gpus=float(on_gpu), name=f"rank {number}")
            self._actors.append(actor)
            opening.append(actor.open.remote(on_gpu))
        ready, waiting = ray.wait(opening, num_returns=len(opening), timeout=_PLACED)
        if waiting:
            room = f"{cpus:g} CPUs" + (" and a GPU" if on_gpu else "")
            raise RankLost(
                f"rank {opening.index(waiting[0]) + 1} has not started within {_PLACED:.0f} seconds",
                path="trainer.ranks",
                why=f"no node of the cluster has {room} left, as far as Ray knows",
                fix="`ray status` says who has them; take fewer ranks, or add nodes",
            )
        try:
            return list(ray.get(ready and opening))
        except ray.exceptions.RayError as error:
            raise RankLost(f"a rank could not start: {_reason(error)}", path="trainer.ranks") from error

    def _end(self, disconnect: bool) -> None:
        """Kill what is left."""
        for actor in self._actors:
            self._connection.remove(actor)
        self._actors.clear()
        if disconnect:
            self._connection.close()
