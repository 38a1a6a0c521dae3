"""The processes of other ranks: started on this host or on a cluster, and connected.

On this host they run the rank program. On a cluster they are Ray actors, on any of its nodes, which serve
rank 0, the run's process, as the program does; on GPUs each has one of its own, which the connection has
reserved.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any, NamedTuple

from coterie import logs
from coterie.backends.cluster.connection import Connection as ClusterConnection
from coterie.backends.trainers.ranks import commands
from coterie.backends.trainers.ranks.group import END, PROGRAM, Rank, RankGroup, RankLost, RankProcess

_HOST = "127.0.0.1"
START_SECONDS = 300.0
"""Seconds for which a rank may take to connect, before it imports anything large."""
ROOM_SECONDS = 300.0
"""Seconds for which a rank on a cluster may wait for its resources."""
HANDSHAKE_SECONDS = 10
"""Seconds for each message of a handshake; what follows has no limit."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SOCKETS = "/proc/self/fd"


def start(world: int) -> RankGroup:
    """Start the other ranks on this host.

    Raises:
        RankLost: one of them could not start.
    """

    def spawn(number: int, port: int, key: bytes) -> HostProcess:
        return HostProcess(number, world, port, key)

    return RankGroup(greeted(_HOST, world, spawn), _HOST, lasting=False)


class HostProcess:
    """A rank's process on this host."""

    def __init__(self, number: int, world: int, port: int, key: bytes) -> None:
        package, log = str(Path(__file__).parents[4]), f"rank-{number}"
        env = {
            "OMP_NUM_THREADS": str(max((os.cpu_count() or 1) // world, 1)),
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH")))),
            "LOCAL_RANK": str(number),
        }
        opened = logs.opened(log)
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, "join", str(number), str(port)],
            stdin=subprocess.PIPE,
            stdout=opened or _messages(),
            stderr=opened or _messages(),
            env=env,
        )
        if opened is not None:
            opened.close()
        assert process.stdin is not None
        with suppress(OSError):  # it has ended already; `greeted` says so
            process.stdin.write(key)  # not among its arguments, which every user of the machine can read
            process.stdin.close()
        self.name, self.log = f"process {process.pid}", logs.where(log)

    def ended(self, seconds: float = 0.0) -> str:
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return ""
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def kill(self) -> None:
        self._process.kill()


def _messages() -> int | None:
    """Where ranks without a log write: the standard error of this process; standard output stays readable."""
    try:
        return sys.__stderr__.fileno() if sys.__stderr__ is not None else subprocess.DEVNULL
    except (OSError, ValueError):
        return subprocess.DEVNULL


# ------------------------------------------------------------------------------------------------ connections


def greeted(host: str, world: int, spawn: Callable[[int, int, bytes], RankProcess]) -> list[Rank]:
    """Start all other ranks, and accept their connections.

    Args:
        host: the address of this process under which they find it.
        spawn: starts the process of a rank, by its number, the port and the key of `connect`.

    Raises:
        RankLost: one of them could not start. None runs then.
    """
    key, processes = secrets.token_bytes(32), dict[int, RankProcess]()

    def check() -> None:
        for number, process in processes.items():
            if how := process.ended():
                raise RankLost(
                    f"rank {number} could not start: it {how}",
                    path="trainer.ranks",
                    why="it did not come as far as its first message",
                    fix=f"see {process.log}",
                )

    try:
        with socket.create_server((host, 0), backlog=world) as server:
            for number in range(1, world):
                processes[number] = spawn(number, server.getsockname()[1], key)
                check()
            ranks = welcome(server, key, world, check)
    except BaseException:
        for process in processes.values():
            process.kill()
            process.ended(END)
        raise
    for rank in ranks:
        rank.process = processes[rank.number]
    return ranks


def welcome(server: socket.socket, key: bytes, world: int, check: Callable[[], None]) -> list[Rank]:
    """Accept the connections of all other ranks.

    Args:
        check: called again and again while ranks are missing; raises if one can't come any more.

    Raises:
        RankLost: a rank has not connected in time.
    """
    ranks: dict[int, Rank] = {}
    deadline = time.monotonic() + START_SECONDS
    server.settimeout(0.1)
    while len(ranks) < world - 1:
        try:
            accepted, _ = server.accept()
        except TimeoutError:
            check()
            if time.monotonic() > deadline:
                missing = next(number for number in range(1, world) if number not in ranks)
                what = f"rank {missing} has not come within {START_SECONDS:.0f} seconds"
                raise RankLost(what, path="trainer.ranks") from None
            continue
        with suppress(EOFError, OSError, AuthenticationError):  # another program
            connection = _connection(accepted)
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
            number, local, pid = connection.recv()
            _wait_without_limit(connection)
            ranks[number] = Rank(number, local, pid, connection)
    return [ranks[number] for number in sorted(ranks)]


def connect(host: str, port: int, key: bytes, number: int, local: int) -> Connection:
    """The connection of another rank to rank 0.

    Raises:
        OSError, AuthenticationError: rank 0 isn't there, or is another program.
    """
    connection = _connection(socket.create_connection((host, port), timeout=START_SECONDS))
    answer_challenge(connection, key)
    deliver_challenge(connection, key)
    connection.send((number, local, os.getpid()))
    _wait_without_limit(connection)
    return connection


def _connection(peer: socket.socket) -> Connection:
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _limit(peer, HANDSHAKE_SECONDS)
    return Connection(peer.detach())


def _wait_without_limit(connection: Connection) -> None:
    with socket.socket(fileno=os.dup(connection.fileno())) as peer:
        _limit(peer, 0)


def _limit(peer: socket.socket, seconds: int) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))


# ----------------------------------------------------------------------------------------------- on a cluster


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
        connection = await asyncio.to_thread(connect, host, port, key, number, local)
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

    def __init__(self, connection: ClusterConnection, actor: Any, opened: Opened, serving: Any) -> None:
        self._connection, self._actor, self._serving = connection, actor, serving
        self.opened = opened
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
        if self.opened.address != self._connection.ray.util.get_node_ip_address():
            hang_up(self.opened.address)  # its node may be gone


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

    def __init__(self, connection: ClusterConnection, on_gpu: Callable[[], bool]) -> None:
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

            ranks = greeted(host, world, spawn)
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
        ready, waiting = ray.wait(opening, num_returns=len(opening), timeout=ROOM_SECONDS)
        if waiting:
            room = f"{cpus:g} CPUs" + (" and a GPU" if on_gpu else "")
            raise RankLost(
                f"rank {opening.index(waiting[0]) + 1} has not started within {ROOM_SECONDS:.0f} seconds",
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
