"""The processes of other ranks: started on this host, where they run the rank program; connected anywhere."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

from coterie import logs
from coterie.backends.trainers.ranks.group import END, PROGRAM, Rank, RankGroup, RankLost, RankProcess

_HOST = "127.0.0.1"
_START = 300.0
"""Seconds for which a rank may take to connect, before it imports anything large."""


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
        with contextlib.suppress(OSError):  # it has ended already; `greeted` says so
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
    deadline = time.monotonic() + _START
    server.settimeout(0.1)
    while len(ranks) < world - 1:
        try:
            accepted, _ = server.accept()
        except TimeoutError:
            check()
            if time.monotonic() > deadline:
                missing = next(number for number in range(1, world) if number not in ranks)
                what = f"rank {missing} has not come within {_START:.0f} seconds"
                raise RankLost(what, path="trainer.ranks") from None
            continue
        with contextlib.suppress(EOFError, OSError, AuthenticationError):  # another program
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
    connection = _connection(socket.create_connection((host, port), timeout=_START))
    answer_challenge(connection, key)
    deliver_challenge(connection, key)
    connection.send((number, local, os.getpid()))
    _wait_without_limit(connection)
    return connection


def _connection(peer: socket.socket) -> Connection:
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _limit(peer, 10)
    return Connection(peer.detach())


def _wait_without_limit(connection: Connection) -> None:
    with socket.socket(fileno=os.dup(connection.fileno())) as peer:
        _limit(peer, 0)


def _limit(peer: socket.socket, seconds: int) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))
