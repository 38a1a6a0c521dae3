"""Two processes with the judge's connections between them. Sent to remote sandboxes: stdlib only.

This module isolates nothing: both sides are processes of one user, in the remote sandbox's container.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import io
import json
import math
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

GRACE = 0.2
"""Seconds that a candidate has to end after the tests; an honest candidate ends by itself."""
_TICK = 0.01

# Runs in each process before its program. RLIMIT_CPU has whole seconds; the hard limit kills a program that
# ignores the soft limit.
_PREAMBLE = """\
import os, resource
os.chdir({folder!r})
resource.setrlimit(resource.RLIMIT_CPU, ({cpu}, {cpu} + 1))
resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
"""

# PR_SET_DUMPABLE 0: another process of this user can't read this one's memory (root still can).
_HIDE = """\
try:
    import ctypes
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
except Exception:
    pass
"""


Kept = dict[int, tuple[bytearray, int]]
"""By pipe: the bytes that were read, and how many are kept (negative: of the end)."""


@dataclass
class Side:
    """One of the two processes, and how it ended: the fields of a `Ran`."""

    pid: int
    status: str = ""
    exit_code: int | None = None
    reason: str = ""
    cpu_seconds: float = 0.0
    stdout: bytes = b""
    stderr: bytes = b""


@dataclass
class Bounds:
    """The limits of each side."""

    cpu: float
    wall: float
    """Seconds."""
    memory: int
    """Address space, in bytes."""
    output: int
    """Bytes kept of stdout and of stderr, from the end."""
    report: int
    """Bytes kept of the report, from the start."""


def run_pair(tests: str, candidate: str, files: dict[str, bytes], bounds: Bounds) -> tuple[bytes, Side, Side]:
    """Run two programs; file descriptor 3 of each is an end of one socket, 4 of `tests` is the report.

    The candidate is killed, with its process group, when the tests' side has ended.

    Args:
        files: written into the candidate's working folder.

    Returns: the report, the tests' side, the candidate.
    """
    folder = tempfile.mkdtemp()
    try:
        _write(folder, files)
        with contextlib.ExitStack() as stack:
            return _connected(stack, folder, (tests, candidate), bounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(nonce: str, tests: str, candidate: str, files: dict[str, bytes], bounds: dict[str, Any]) -> None:
    """Run the pair and print the outcome on a separate line, after the nonce."""
    with contextlib.suppress(OSError):
        os.unlink(sys.argv[0])  # it contains the tests and the nonce
    exec(_HIDE, {})
    report, *sides = run_pair(tests, candidate, files, Bounds(**bounds))
    outcome = {"report": _text(report), "tests": _described(sides[0]), "candidate": _described(sides[1])}
    print(f"\n{nonce}{json.dumps(outcome)}", flush=True)


def _connected(
    stack: contextlib.ExitStack, folder: str, programs: tuple[str, str], bounds: Bounds
) -> tuple[bytes, Side, Side]:
    pipes = [[_held(stack, fd) for fd in os.pipe()] for _ in range(3)]
    ends = [_held(stack, end.detach()) for end in socket.socketpair()]
    null = _held(stack, os.open(os.devnull, os.O_RDWR))
    (_, report), (_, stdout), (_, stderr) = pipes
    limits = {"cpu": math.ceil(bounds.cpu), "memory": bounds.memory}
    heads = [_PREAMBLE.format(folder=place, **limits) for place in ("/", folder)]
    sides = [_start(heads[0] + _HIDE + programs[0], {1: null, 2: null, 3: ends[0], 4: report})]
    try:
        sides.append(_start(heads[1] + programs[1], {1: stdout, 2: stderr, 3: ends[1]}))
        for held in (report, stdout, stderr, *ends):
            held.close()
        sizes = (bounds.report, -bounds.output, -bounds.output)
        kept = {start.fileno(): (bytearray(), size) for (start, _), size in zip(pipes, sizes, strict=True)}
        _watch(sides, kept, bounds)
    finally:
        for side in sides:
            _end(side, "killed", "stopped")
    written, sides[1].stdout, sides[1].stderr = (bytes(buffer) for buffer, _ in kept.values())
    return written, sides[0], sides[1]


def _start(code: str, files: dict[int, io.FileIO]) -> Side:
    """Start Python in a new session with only these files open. The code has no path: it is read from a file
    without a name."""
    with tempfile.TemporaryFile() as source:
        source.write(code.encode("utf-8", "surrogatepass"))
        source.seek(0)
        actions = [(os.POSIX_SPAWN_DUP2, source.fileno(), 0)]
        actions += [(os.POSIX_SPAWN_DUP2, file.fileno(), number) for number, file in files.items()]
        command = [sys.executable, "-I", "-"]
        return Side(os.posix_spawn(sys.executable, command, {}, file_actions=actions, setsid=True))


def _watch(sides: list[Side], kept: Kept, bounds: Bounds) -> None:
    """Drain the pipes until the tests' side has ended and then, within `GRACE`, the candidate."""
    tests, candidate = sides
    deadline = time.monotonic() + bounds.wall
    with selectors.DefaultSelector() as selector:
        for fd in kept:
            selector.register(fd, selectors.EVENT_READ)
        while not (tests.status and candidate.status):
            _drain(selector, kept, _TICK)
            ended_before = tests.status
            for side in sides:
                _reap(side, bounds.cpu)
            if tests.status and not ended_before:
                deadline = min(deadline, time.monotonic() + GRACE)
            if time.monotonic() > deadline:
                late = ("killed", "the tests were done") if tests.status else ("timeout", "of wall time")
                for side in sides:
                    _end(side, *late)
        _drain(selector, kept, 0)  # a pipe holds at most what one read takes


def _drain(selector: selectors.BaseSelector, kept: Kept, timeout: float) -> None:
    if not selector.get_map():
        time.sleep(timeout)
    for key, _ in selector.select(timeout):
        data = os.read(key.fd, 1 << 16)
        if not data:
            selector.unregister(key.fd)
        buffer, size = kept[key.fd]
        buffer += data
        if size >= 0:
            del buffer[size:]
        else:
            del buffer[:size]


def _reap(side: Side, cpu: float) -> None:
    if side.status:
        return
    if os.waitid(os.P_PID, side.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        return
    _kill_group(side)  # before it is reaped: until then the pid is not reused
    _, status, usage = os.wait4(side.pid, 0)
    side.cpu_seconds = usage.ru_utime + usage.ru_stime
    code = os.waitstatus_to_exitcode(status)
    side.exit_code = code if code >= 0 else None
    if code == -signal.SIGXCPU or (code < 0 and side.cpu_seconds >= cpu):
        side.status, side.reason = "timeout", "of CPU time"
    elif code < 0:
        side.status, side.reason = "killed", signal.Signals(-code).name
    else:
        side.status = "failed" if code else "finished"


def _end(side: Side, status: str, reason: str) -> None:
    if not side.status:
        _kill_group(side)
        os.wait4(side.pid, 0)
        side.status, side.reason = status, reason


def _kill_group(side: Side) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(side.pid, signal.SIGKILL)


def _described(side: Side) -> dict[str, Any]:
    fields = vars(side)
    return {name: _text(value) if type(value) is bytes else value for name, value in fields.items()}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _write(folder: str, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        target = os.path.normpath(os.path.join(folder, path))
        if not target.startswith(folder + os.sep):
            raise ValueError(f"the path '{path}' leaves the working folder")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(data)


def _held(stack: contextlib.ExitStack, fd: int) -> io.FileIO:
    """The file under a high number that children don't inherit; closed with the stack at the latest."""
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(fd)
    return stack.enter_context(io.FileIO(high))
