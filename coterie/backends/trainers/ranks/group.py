"""The other ranks, as rank 0 has them: greeted, watched, stopped.

`processes.py` starts them on this host, `actors.py` on a cluster.

Each rank has a connection to rank 0 that carries commands and answers, and waits as long as a rollout takes.
The kernel closes it with either process, however that ends, so both sides notice at once. A rank that loses
its connection ends itself: a killed run leaves no rank behind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import NamedTuple, Protocol

from coterie.backends.models.patience import Patience
from coterie.core.errors import ConfigError, UserError

log = logging.getLogger("coterie")

PROGRAM = "coterie.backends.trainers.ranks"
MOST_LAG = 1800.0
"""Seconds for which a rank may lag behind another one that waits for it."""
_START = 300.0
"""Seconds for which a rank may take to connect, before it imports anything large."""
_END = 5.0
"""Seconds for which a rank may take to end."""


class RankLost(UserError):
    """A rank ended, could not start, or does not answer."""


class Process(Protocol):
    """The process of a rank, where rank 0 has started it."""

    name: str
    """Which one it is, in words."""
    log: str
    """Where to read what it prints."""

    def ended(self, seconds: float = 0.0) -> str:
        """How it ended, as soon as it has; empty: it still runs after so long."""

    def kill(self) -> None:
        """End it in the middle of whatever it does."""


class Answer(NamedTuple):
    """What a rank sent: its result, or the bytes of its exception. `data` is None once the rank has ended."""

    ok: bool
    data: bytes | None


@dataclass(eq=False)
class Rank:
    """Another rank, seen from rank 0."""

    number: int
    local: int
    """Its number among the ranks of its host: the index of its device."""
    pid: int
    connection: Connection
    process: Process | None = None
    """None: another program started it."""
    answers: queue.SimpleQueue[Answer] = field(default_factory=queue.SimpleQueue)
    ended: str = ""
    """How it ended; empty while it lives."""
    sending: threading.Lock = field(default_factory=threading.Lock)
    """Held while something is sent to it."""
    patience: Patience | None = None
    """With its process; None: it isn't asked for signs of life."""

    def watch(self, expected: threading.Event, lost: Callable[[], None]) -> None:
        """Read answers until the rank ends; `lost` is called if that was not `expected`."""
        try:
            while True:
                data = self.connection.recv_bytes()
                if self.patience is not None:
                    self.patience.seen()
                if data != ALIVE:
                    self.answers.put(Answer(data[:1] == b"+", data[1:]))
        except (EOFError, OSError):
            self.ended = "ended" if expected.is_set() else self._how()
            if not expected.is_set():
                log.error("rank %d %s", self.number, self.ended)
            self.answers.put(Answer(False, None))
            if not expected.is_set():
                lost()
        finally:
            self.connection.close()

    def hang_up(self) -> None:
        """End the connection on both sides. (A `close` would wait for the thread that reads it.)"""
        with socket.socket(fileno=os.dup(self.connection.fileno())) as peer:
            peer.shutdown(socket.SHUT_RDWR)

    @property
    def name(self) -> str:
        """Its process, in words."""
        return self.process.name if self.process is not None else f"process {self.pid}"

    def _how(self) -> str:
        if self.patience is not None and not self.patience.left:
            return f"is given up: {self.patience}"
        how = self.process.ended(_END) if self.process is not None else ""
        return how or f"closed its connection ({self.name})"


class Group:
    """The other ranks of one world, and the address under which they find rank 0.

    Args:
        ranks: all but rank 0, in their order.
        host: rank 0's address.
        lasting: whether the ranks outlive a trainer: another program started them.
        local: rank 0's number among the ranks of its host.
        closed: called once they have ended.
    """

    def __init__(
        self,
        ranks: list[Rank],
        host: str,
        *,
        lasting: bool,
        local: int = 0,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        self.ranks, self.host, self.lasting, self.local, self.closed = ranks, host, lasting, local, closed
        self.on_loss: Callable[[], None] | None = None
        """Called once a rank has ended unexpectedly, in another thread."""
        self.ending = threading.Event()
        for rank in ranks:
            threading.Thread(
                target=rank.watch, args=(self.ending, self._lost), name=f"rank {rank.number}", daemon=True
            ).start()

    def _lost(self) -> None:
        if self.on_loss is not None:
            self.on_loss()

    @property
    def world(self) -> int:
        return len(self.ranks) + 1

    def send(self, rank: Rank, data: bytes) -> None:
        """Send a command.

        Raises:
            RankLost: the rank has ended.
        """
        try:
            with rank.sending:
                rank.connection.send_bytes(data)
        except OSError:
            raise self.lost(rank) from None

    def receive(self, rank: Rank, seconds: float) -> Answer:
        """The rank's next answer.

        Raises:
            RankLost: it ended, or it hasn't answered in that time.
        """
        try:
            answer = rank.answers.get(timeout=seconds)
        except queue.Empty:
            raise RankLost(
                f"rank {rank.number} hasn't answered for {seconds:.0f} seconds",
                path="trainer.ranks",
                why=f"{rank.name} is stopped, or waits for something",
            ) from None
        if answer.data is None:
            rank.answers.put(answer)  # for the next one who asks
            raise self.lost(rank)
        return answer

    def lost(self, rank: Rank) -> RankLost:
        """The error of a rank that has ended."""
        deadline = time.monotonic() + _END
        while not rank.ended and time.monotonic() < deadline:
            time.sleep(0.01)  # its reader is about to see it
        place = rank.process.log if rank.process is not None else "its messages"
        return RankLost(
            f"rank {rank.number} {rank.ended or 'closed its connection'}",
            path="trainer.ranks",
            why="every rank computes a part of each update, so the others can't go on. A kill is most "
            "often the system's, out of memory",
            fix=f"see {place}; resume the run, with smaller trainer.micro_tokens or fewer ranks",
        )

    def close(self, *, at_once: bool = False) -> None:
        """End the ranks; afterwards none of their processes lives.

        Args:
            at_once: kill them, in the middle of whatever they do.
        """
        self.ending.set()
        for rank in self.ranks:
            if at_once and rank.process is not None:
                rank.process.kill()
            with contextlib.suppress(OSError):
                if at_once:
                    rank.hang_up()
                else:
                    rank.connection.send_bytes(STOP)
        deadline = time.monotonic() + _END
        for rank in self.ranks:
            if rank.process is not None and not rank.process.ended(max(deadline - time.monotonic(), 0.1)):
                rank.process.kill()
                rank.process.ended(_END)
        self.closed()


STOP = b"stop"
"""The message after which a rank ends with exit code 0."""
ALIVE = b"alive"
"""The message that a rank's reader sends back at once, also while the rank computes."""


# --------------------------------------------------------------------------------------------------- starting

joined: Group | None = None
"""The ranks that came with this process, by torchrun or a cluster; the rank program sets it."""


def group_of(world: int, start: Callable[[int], Group]) -> Group:
    """The other ranks of a world of `world`: those that came with this process, or new ones.

    Args:
        start: starts them.

    Raises:
        RankLost: one of them could not start.
    """
    return joined if joined is not None else start(world)


def check_world(ranks: int) -> bool:
    """Refuse a world that another program started, and that isn't the configured one.

    Returns:
        whether another program has started the ranks.

    Raises:
        ConfigError: the number of ranks differs, or the processes don't run the rank program.
    """
    world = joined.world if joined is not None else int(os.environ.get("WORLD_SIZE") or 1)
    if joined is None and world > 1:
        raise ConfigError(
            f"this process is one of {world} that another program started",
            path="trainer.ranks",
            why="WORLD_SIZE is set, and each of them would be a run of its own",
            fix=f"torchrun --standalone --nproc-per-node {world} -m {PROGRAM} run RECIPE "
            f"trainer.ranks={world} ..., or unset WORLD_SIZE",
        )
    if joined is not None and world != ranks:
        raise ConfigError(
            f"{world} ranks were started, and the configuration has {ranks}",
            path="trainer.ranks",
            why=f"WORLD_SIZE is {world}",
            fix=f"set trainer.ranks={world}, or start {ranks}",
        )
    return joined is not None


def greeted(host: str, world: int, spawn: Callable[[int, int, bytes], Process]) -> list[Rank]:
    """Start all other ranks, and accept their connections.

    Args:
        host: the address of this process under which they find it.
        spawn: starts the process of a rank, by its number, the port and the key of `connect`.

    Raises:
        RankLost: one of them could not start. None runs then.
    """
    key, processes = secrets.token_bytes(32), dict[int, Process]()

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
            process.ended(_END)
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
