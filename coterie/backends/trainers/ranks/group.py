"""A rank's place among the others; and the other ranks, as rank 0 has them: sent to, watched, stopped.

`processes.py` starts them, on this host or on a cluster, and accepts their connections.

Each rank has a connection to rank 0 that carries commands and answers, and waits as long as a rollout takes.
The kernel closes it with either process, however that ends, so both sides notice at once. A rank that loses
its connection ends itself: a killed run leaves no rank behind. A rank whose process hangs closes nothing, so
rank 0 asks each for signs of life.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

from coterie.backends.models.patience import Patience
from coterie.backends.trainers.packing import TokenRow
from coterie.core.errors import ConfigError, UserError


class RankAddress(NamedTuple):
    """A rank's number, and where its world meets."""

    number: int
    world: int
    local: int
    """Its number among the ranks of its host: the index of its device."""
    host: str
    port: int


class RankPlace:
    """A rank among the others, with the collective operations of a trainer: all ranks call the same ones in
    the same order. This one is of a process without other ranks."""

    number, world, local = 0, 1, 0

    def share(self, rows: Sequence[TokenRow], packing: bool) -> list[int]:
        """Indices of the rows of this rank, in their order."""
        return list(range(len(rows)))

    def sum_gradients(self, tensors: Sequence[Any], loss: float) -> float:
        """Add the gradients of all ranks, in place; returns the sum of the losses."""
        return loss

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank."""
        return [value]

    def broadcast(self, tensors: Sequence[Any]) -> None:
        """Copy rank 0's tensors to all ranks, in place."""

    def abort(self) -> None:
        """Break operations that wait for a rank that is gone."""

    def close(self) -> None:
        """Leave the others."""


log = logging.getLogger("coterie")

PROGRAM = "coterie.backends.trainers.ranks"
MOST_LAG = 1800.0
"""Seconds for which a rank may lag behind another one that waits for it."""
END = 5.0
"""Seconds for which a rank may take to end."""
STOP = b"stop"
"""The message after which a rank ends with exit code 0."""
ALIVE = b"alive"
"""The message that a rank's reader sends back at once, also while the rank computes."""
ASK_SECONDS = 5.0
"""Most seconds between two questions whether a rank lives."""


class RankLost(UserError):
    """A rank ended, could not start, or does not answer."""


class RankProcess(Protocol):
    """The process of a rank, where rank 0 has started it: `HostProcess`, `ActorProcess`."""

    name: str
    """Which one it is, in words."""
    log: str
    """Where to read what it prints."""

    def ended(self, seconds: float = 0.0) -> str:
        """How it ended, as soon as it has; empty: it still runs after so long."""

    def kill(self) -> None:
        """End it in the middle of whatever it does."""


@dataclass(eq=False)
class Rank:
    """Another rank, seen from rank 0."""

    number: int
    local: int
    """Its number among the ranks of its host: the index of its device."""
    pid: int
    connection: Connection
    process: RankProcess | None = None
    """None: another program started it."""
    answers: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)
    """What it sent and nobody has taken; None at last, once it has ended."""
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
                    self.answers.put(data)
        except (EOFError, OSError):
            self.ended = "ended" if expected.is_set() else self._how()
            if not expected.is_set():
                log.error("rank %d %s", self.number, self.ended)
            self.answers.put(None)
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
        how = self.process.ended(END) if self.process is not None else ""
        return how or f"closed its connection ({self.name})"


class RankGroup:
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
        self.on_loss: Callable[[], None] = lambda: None
        """Called once a rank has ended unexpectedly, in another thread."""
        self.ending = threading.Event()
        for rank in ranks:
            threading.Thread(
                target=rank.watch,
                args=(self.ending, lambda: self.on_loss()),
                name=f"rank {rank.number}",
                daemon=True,
            ).start()

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

    def receive(self, rank: Rank, seconds: float) -> bytes:
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
        if answer is None:
            rank.answers.put(None)  # for the next one who asks
            raise self.lost(rank)
        return answer

    def lost(self, rank: Rank) -> RankLost:
        """The error of a rank that has ended."""
        deadline = time.monotonic() + END
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
        deadline = time.monotonic() + END
        for rank in self.ranks:
            if rank.process is not None and not rank.process.ended(max(deadline - time.monotonic(), 0.1)):
                rank.process.kill()
                rank.process.ended(END)
        self.closed()


# ---------------------------------------------------------------------------------------------- signs of life


def watch_over(group: RankGroup, seconds: float) -> None:
    """Ask for signs of life from now on. A rank that gives none for so long is killed: the others need it."""
    for rank in group.ranks:
        if rank.patience is not None:  # an earlier trainer of these ranks has asked
            rank.patience.seconds = seconds
            continue
        rank.patience = Patience(rank.name, seconds)
        arguments = rank, rank.patience, group.ending
        threading.Thread(target=_ask, args=arguments, name=f"asks rank {rank.number}", daemon=True).start()


def _ask(rank: Rank, patience: Patience, ending: threading.Event) -> None:
    for seconds in patience.ticks(min(patience.seconds / 10, ASK_SECONDS)):
        if ending.wait(seconds) or rank.ended:
            return
        if rank.process is not None and rank.process.ended():
            break  # a node that is gone closes no connection
        if not rank.sending.acquire(blocking=False):
            continue  # a command is on its way
        try:
            rank.connection.send_bytes(ALIVE)
        except OSError:
            return
        finally:
            rank.sending.release()
    if rank.process is not None:
        rank.process.kill()
    with contextlib.suppress(OSError):
        rank.hang_up()


# ------------------------------------------------------------------------------------------------- the world

joined: RankGroup | None = None
"""The ranks that came with this process, by torchrun or a cluster; the rank program sets it."""


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
