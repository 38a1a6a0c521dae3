"""One program on a SandboxFusion server: its start, its limits and its end. Sent there as text with the
wrapper: standard library only, Python 3.9 or later."""

from __future__ import annotations

import base64
import contextlib
import os
import resource
import selectors
import signal
import sys
import time
from typing import Any

from . import fusion_apart
from .fusion_apart import Apart
from .inside import kernel

TICK = 0.02  # seconds between two looks at the program
SCAN = 0.05  # least seconds between two sums of CPU time
SHARE = 20  # a sum takes at most this part of the time
PATIENCE = 5.0  # seconds for kills and removals to finish
STACK = 8 << 20
COMMANDS = {"python": [sys.executable], "bash": ["/bin/bash"]}
Result = dict[str, Any]


def run_side(
    program: dict[str, Any], number: int, apart: Apart, links: list[int], stop: int | None = None
) -> Result:
    """Run a program in its box; its status, output and CPU time.

    Args:
        number: of the program in its run.
        links: become the program's descriptors 3, 4, ... and are closed here.
        stop: a descriptor that becomes readable when the program is to be killed.
    """
    began = time.monotonic()
    try:
        child, tails = start(program, number, apart, links)
    except OSError as error:
        return {"fault": f"the program could not be started: {error}"}
    finally:
        for descriptor in links:
            os.close(descriptor)
    watch = Watch(program, child, tails, stop)
    watch.until_it_ends()
    kill_all(child, apart.users[number])
    watch.drain()
    cpu = kernel.children()
    status, code, reason = verdict(watch, cpu)
    kept = [tail.kept() for tail in tails]
    return {
        "status": status,
        "exit_code": code,
        "stdout": base64.b64encode(kept[0]).decode(),
        "stderr": base64.b64encode(kept[1]).decode(),
        "dropped": sum(tail.seen for tail in tails) - sum(map(len, kept)),
        "cpu_seconds": cpu,
        "wall_seconds": time.monotonic() - began,
        "reason": reason,
    }


# ---------------------------------------------------------------------------------------------------- start


def start(program: dict[str, Any], number: int, apart: Apart, links: list[int]) -> tuple[int, list[Tail]]:
    """Start the program; its process id, and the `Tail`s of its stdout and its stderr. Raises OSError."""
    box = program["box"]
    home, main = os.path.join(box, "work"), os.path.join(box, program["names"]["code"])
    environment = {
        "PATH": os.path.dirname(sys.executable) + ":/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "TMPDIR": os.path.join(box, "tmp"),
        "LANG": "C.UTF-8",
        "PYTHONUTF8": "1",
        "PYTHONPATH": home,
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        **program["environment"],
    }
    command = [*COMMANDS[program["language"]], main, *program["argv"]]
    out, err, failing = os.pipe(), os.pipe(), os.pipe()
    stdin = os.open(os.path.join(box, program["names"]["stdin"]), os.O_RDONLY)
    os.unlink(os.path.join(box, program["names"]["stdin"]))
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            failed = kernel.only([stdin, out[1], err[1], *links], failing[1])
            os.chdir(home)
            limit(program["limits"], apart.users[number] is not None)
            for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python, and so by what it starts
                signal.signal(signum, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            # Shells and their tools work only with an action of SIGCHLD.
            sigchld = "pretend" if program["language"] == "python" else "allow"
            fusion_apart.confine(apart, number, box, sigchld=sigchld)
            os.execve(command[0], command, environment)
        except BaseException as error:
            os.write(failed, repr(error).encode(errors="replace"))
        finally:
            os._exit(255)
    for descriptor in (stdin, out[1], err[1], failing[1]):
        os.close(descriptor)
    with open(failing[0], "rb") as stream:
        failure = stream.read().decode()  # the descriptor is closed by exec
    if failure:
        os.waitpid(child, 0)
        for descriptor in (out[0], err[0]):
            os.close(descriptor)
        raise OSError(failure)
    keep = program["limits"]["output_kb"] << 10
    return child, [Tail(out[0], keep), Tail(err[0], keep)]


def limit(limits: dict[str, Any], alone: bool) -> None:
    """Set the kernel's limits.

    Args:
        alone: whether the program's user has no other processes; the kernel counts by user.
    """
    # The server makes it the memory limit: each thread's stack would have this size.
    others = {resource.RLIMIT_STACK: STACK}
    if alone:
        others[resource.RLIMIT_NPROC] = limits["processes"]
    names = ("cpu_seconds", "memory_mb", "disk_mb", "open_files")
    cpu, memory, disk, files = (limits[name] for name in names)
    for name, bound in kernel.bounds(cpu, memory, disk, files, others):
        resource.setrlimit(name, bound)


# ---------------------------------------------------------------------------------------------------- watch


class Tail:
    """The end of a stream."""

    def __init__(self, fd: int, keep: int) -> None:
        self.fd, self.keep, self.seen, self.bytes = fd, keep, 0, bytearray()
        os.set_blocking(self.fd, False)

    def read(self) -> bool:
        """Read the available bytes; False at the end of the stream."""
        try:
            chunk = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return True
        self.seen += len(chunk)
        self.bytes += chunk
        if len(self.bytes) > 2 * self.keep:
            del self.bytes[: -self.keep]
        return bool(chunk)

    def kept(self) -> bytes:
        return bytes(self.bytes[-self.keep :])


class Watch:
    """Reads the program's output, and stops the program at a limit."""

    def __init__(self, program: dict[str, Any], child: int, tails: list[Tail], stop: int | None) -> None:
        self.limits, self.flood = program["limits"], program["flood_bytes"]
        self.child, self.tails, self.stop = child, tails, stop
        self.ended: int | None = None
        self.status, self.reason = "", ""
        self.selector = selectors.DefaultSelector()
        for tail in tails:
            self.selector.register(tail.fd, selectors.EVENT_READ, tail)
        if stop is not None:
            self.selector.register(stop, selectors.EVENT_READ)
        with contextlib.suppress(OSError, AttributeError):  # without it, the program is looked at more often
            self.selector.register(os.pidfd_open(child), selectors.EVENT_READ)

    def until_it_ends(self) -> None:
        """Read until the program ends by itself or reaches a limit."""
        deadline, scan = time.monotonic() + self.limits["wall_seconds"], 0.0
        while self.ended is None and not self.status:
            for key, _ in self.selector.select(TICK if self.selector.get_map() else TICK / 10):
                if key.data is not None and not key.data.read():
                    self.selector.unregister(key.fd)
                if key.fd == self.stop:
                    self.status, self.reason = "killed", "the tests were done"
            self.ended = reap(self.child)
            now = time.monotonic()
            if self.ended is not None or self.status:
                return
            self._flooded()
            if self.status:
                return
            if now > deadline:
                self.status, self.reason = "timeout", f"wall time: {self.limits['wall_seconds']:g} s"
            elif now > scan:
                self._scan()
                scan = time.monotonic() + max(SCAN, SHARE * (time.monotonic() - now))

    def _flooded(self) -> None:
        if any(tail.seen > self.flood for tail in self.tails):
            self.status, self.reason = "killed", f"it wrote more than {self.flood >> 20} MiB"

    def _scan(self) -> None:
        """Sum the CPU time of all processes, and count them."""
        living = kernel.family()
        if sum(living.values()) + kernel.children() > self.limits["cpu_seconds"]:
            self.status = "timeout"
        elif len(living) > self.limits["processes"]:
            self.status = "killed"
            self.reason = f"more than {self.limits['processes']} processes"

    def drain(self) -> None:
        """Read the rest of the pipes, after all writers have ended."""
        for tail in self.tails:
            end = tail.seen + (1 << 20)  # a pipe holds no more
            before = -1
            while before != tail.seen and tail.seen < end:
                before = tail.seen
                tail.read()
        if not self.status:
            self._flooded()


def verdict(watch: Watch, cpu: float) -> tuple[str, int | None, str]:
    """(status, exit code, reason) of the program."""
    if watch.status == "killed" or watch.reason:
        return watch.status, None, watch.reason
    stopped = watch.status == "timeout" or watch.ended == -signal.SIGXCPU
    if stopped or cpu > watch.limits["cpu_seconds"]:
        return "timeout", None, f"CPU time: {watch.limits['cpu_seconds']:g} s"
    assert watch.ended is not None  # else a limit ended it
    if watch.ended < 0:
        return "killed", None, "signal " + signal.Signals(-watch.ended).name
    return ("failed" if watch.ended else "finished"), watch.ended, ""


def reap(child: int) -> int | None:
    """Reap ended processes; how `child` ended (an exit code, or minus a signal), None while it lives."""
    ended = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        if pid == child:
            ended = os.waitstatus_to_exitcode(status)


def kill_all(child: int, user: int | None) -> None:
    """Kill everything that the program started. If it has its own user, one kernel call kills all of them."""
    deadline = time.monotonic() + PATIENCE
    with contextlib.suppress(OSError):  # all gone
        os.killpg(child, signal.SIGKILL)
    while time.monotonic() < deadline:
        if user is not None and os.fork() == 0:
            try:
                os.setresuid(user, user, user)  # raises instead of leaving this fork root
                os.kill(-1, signal.SIGKILL)
            finally:
                os._exit(0)
        left = kernel.family()
        for signum in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none can fork
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signum)
        reap(0)
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        time.sleep(TICK / 10)
