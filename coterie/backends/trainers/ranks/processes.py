"""Ranks as processes of this host, which run the rank program."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from coterie import logs
from coterie.backends.trainers.ranks.group import PROGRAM, Group, greeted

_HOST = "127.0.0.1"


def start(world: int) -> Group:
    """Start the other ranks on this host.

    Raises:
        RankLost: one of them could not start.
    """

    def spawn(number: int, port: int, key: bytes) -> HostProcess:
        return HostProcess(number, _spawn(number, world, port, key))

    return Group(greeted(_HOST, world, spawn), _HOST, lasting=False)


class HostProcess:
    """A rank's process on this host."""

    def __init__(self, number: int, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.name = f"process {process.pid}"
        self.log = logs.where(_log(number))

    def ended(self, seconds: float = 0.0) -> str:
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return ""
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def kill(self) -> None:
        self._process.kill()


def _spawn(number: int, world: int, port: int, key: bytes) -> subprocess.Popen[bytes]:
    package = str(Path(__file__).parents[4])
    env = {
        "OMP_NUM_THREADS": str(max((os.cpu_count() or 1) // world, 1)),
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH")))),
        "LOCAL_RANK": str(number),
    }
    log = logs.opened(_log(number))
    process = subprocess.Popen(
        [sys.executable, "-m", PROGRAM, "join", str(number), str(port)],
        stdin=subprocess.PIPE,
        stdout=log or _messages(),
        stderr=log or _messages(),
        env=env,
    )
    if log is not None:
        log.close()
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # it has ended already; `_check_alive` says so
        process.stdin.write(key)  # not among its arguments, which every user of the machine can read
        process.stdin.close()
    return process


def _log(number: int) -> str:
    """Whose log has the output of a rank."""
    return f"rank-{number}"


def _messages() -> int | None:
    """Where ranks without a log write: the standard error of this process; standard output stays readable."""
    try:
        return sys.__stderr__.fileno() if sys.__stderr__ is not None else subprocess.DEVNULL
    except (OSError, ValueError):
        return subprocess.DEVNULL
