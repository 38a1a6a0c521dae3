"""The process that ends vLLM's processes when the run's process is gone.

vLLM's own processes outlive a parent that is killed (SIGKILL, the out-of-memory killer): the engine's waits
for its next request for ever, with all of its GPU memory. A small process in a session of its own waits for
the end of the run's process, however it ends. Linux only, as vLLM.

This module runs as a script too (`python reaper.py TOKEN PID SECONDS`), and imports the standard library
alone.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

VARIABLE = "COTERIE_VLLM_OWNER"
"""The environment variable by which vLLM's processes are known: all children inherit it."""
SEGMENTS = "/dev/shm/"
"""Folder of shared memory."""
SEMAPHORE = "sem.mp-"
"""Beginning of the names of Python's semaphores in that folder."""


class Reaper:
    """Watches this process; one is enough for all servers, see `reaper`.

    Args:
        seconds: that Python's trackers have, after the processes' end, to remove the shared memory.
    """

    def __init__(self, seconds: float = 5.0) -> None:
        self.token = secrets.token_hex(16)
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__, self.token, str(os.getpid()), str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal is for the run
            close_fds=True,
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def keep(self, names: set[str]) -> None:
        """Have shared memory removed after the processes' end, if they were killed and nobody else does."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it is gone, and the next start of a server makes another
                self._process.stdin.write("".join(f"{name}\n" for name in sorted(names)).encode())
                self._process.stdin.flush()

    def close(self) -> None:
        """End the processes that are left, and the watch."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_reaper: Reaper | None = None


def reaper() -> Reaper:
    """The reaper of this process; started with the first server."""
    global _reaper
    if _reaper is None or not _reaper.alive:
        _reaper = Reaper()
        atexit.register(_reaper.close)
    return _reaper


def owned(token: str) -> list[int]:
    """Ids of the processes whose mark begins with the token: `TOKEN.N` for the N-th start of a server.

    Python's resource tracker is left out: it ends by itself, after it has removed its dead users' segments.
    """
    mark, pids = f"{VARIABLE}={token}".encode(), []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            tracker = b"resource_tracker" in (folder / "cmdline").read_bytes()
        except OSError:
            continue  # ended, or another user's
        if not tracker and any(variable.startswith(mark) for variable in variables):
            pids.append(int(folder.name))
    return pids


def spawned(token: str) -> list[int]:
    """Those of a token that multiprocessing has started: vLLM's own, which give themselves its name.

    While vLLM is configured it runs other programs too, such as lscpu, and a Python that inspects the model's
    class where no cache has that; they end soon.
    """

    def command(pid: int) -> bytes:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return b""  # ended

    return [
        pid
        for pid in owned(token)
        if any(mark in command(pid) for mark in (b"--multiprocessing-fork", b"VLLM"))
    ]


def segments(token: str) -> set[str]:
    """Names of Python's shared memory and semaphores that only the processes of a token have.

    A file is known by its inode: a semaphore has another name, soon removed, in the maps of who made it.
    """

    def of(pid: int | str) -> set[int]:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:
            return set()  # ended
        return {int(line.split()[4]) for line in lines if f" {SEGMENTS}" in line}

    theirs = set().union(*map(of, owned(token))) - of("self")
    with os.scandir(SEGMENTS) as files:
        named = [file for file in files if file.name.startswith(("psm_", SEMAPHORE))]
        return {file.name for file in named if file.inode() in theirs}


def kill(token: str, seconds: float = 10.0) -> None:
    """Kill the processes of a token, and wait until they are gone; new ones may appear meanwhile."""
    killed: set[int] = set()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pids = owned(token)
        killed.update(pids)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not pids and not any(map(_running, killed)):
            return
        time.sleep(0.02)


def _running(pid: int) -> bool:
    """Whether a process still has its memory; one that is dying has lost its environment before."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def main(token: str, parent: int, seconds: float) -> None:
    """Wait until the parent is gone, or closes the pipe; then kill."""
    try:
        handle = os.pidfd_open(parent)
    except ProcessLookupError:
        handle = -1
    names = _names(handle if os.getppid() == parent else -1)
    kill(token)
    # Python's trackers remove what is left of dead processes, unless they were killed too, as Ray does.
    end = time.monotonic() + seconds
    while names and time.monotonic() < end:
        time.sleep(0.1)
        names = {name for name in names if os.path.exists(f"{SEGMENTS}{name}")}
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(f"{SEGMENTS}{name}")


def _names(parent: int) -> set[str]:
    """What `Reaper.keep` writes into the pipe, until its end or the parent's; -1: that has ended.

    A child of the parent may hold the pipe as well, so its end alone does not tell.
    """
    pipe, written = sys.stdin.fileno(), b""
    while True:
        watched, seconds = ([pipe], 0) if parent < 0 else ([pipe, parent], None)
        ready, _, _ = select.select(watched, [], [], seconds)
        part = os.read(pipe, 2**16) if pipe in ready else b""
        if not part:
            return set(written.decode().split())
        written += part


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
