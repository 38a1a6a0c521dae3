"""The wrapper of every program on a SandboxFusion server. It is sent there as text: standard library only,
Python 3.9 or later.

The stock server stalls on more than about 200 KB of output, measures wall time only, fetches files by literal
paths and gives its own environment to the program. So the program runs as a child of the wrapper, with its
own pipes, limits and user (if the server runs as root and others may read its Python). The wrapper writes the
result to one file, which the server returns. The file has a nonce that the program never sees. `NONCE
started` on standard output means that the program was started, exit code 0 that the file is complete.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import fnmatch
import json
import math
import os
import random
import resource
import selectors
import signal
import stat
import subprocess
import sys
import time
from typing import IO, Any

TICK = 0.02  # seconds between two looks at the program
SCAN = 0.05  # seconds between two sums of CPU time
PATIENCE = 5.0  # seconds for kills and removals to finish
LONG = 1000  # most characters of a nested folder's path
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
COMMANDS = {"python": [sys.executable], "bash": ["/bin/bash"]}


def prctl(option: int, value: int) -> None:
    """Call prctl; if libc lacks it, the protection is missing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def main(order: dict[str, Any]) -> None:
    """Run the order's program and write the report."""
    with contextlib.suppress(OSError):
        os.unlink(__file__)  # it contains the nonce
    prctl(PR_SET_DUMPABLE, 0)  # the program can't read this process's memory, nor its files through /proc
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphaned descendants become children of this process, to be killed
    place = os.path.abspath(order["report"])
    print(order["nonce"], "started", flush=True)
    report = {"nonce": order["nonce"], **run(order)}
    with open(place, "x") as file:
        json.dump(report, file)
        file.flush()
        written = os.fstat(file.fileno())
    status = os.lstat(place)
    if (written.st_dev, written.st_ino) != (status.st_dev, status.st_ino):
        sys.exit(3)  # the program swapped the folder


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Run the program; the report's contents."""
    box = os.path.abspath(order["box"])
    home = os.path.join(box, "work")
    for folder in (home, os.path.join(box, "tmp")):
        os.makedirs(folder, exist_ok=True)
    lost = [path for path in order["files"] if not os.path.isfile(os.path.join(home, path))]
    if lost:
        return {"lost": lost}
    for name in ("code", "stdin"):
        with open(os.path.join(box, order["names"][name]), "wb") as file:
            file.write(base64.b64decode(order[name]))
    user = own_user()
    if user is not None:
        give(box, user)
    began = time.monotonic()
    try:
        child, tails = start(order, box, user)
    except (OSError, subprocess.SubprocessError) as error:
        return {"fault": f"the program could not be started: {error!r}"}
    watch = Watch(order["limits"], child.pid, tails)
    watch.until_it_ends()
    kill_all(child.pid, user)
    watch.drain()
    cpu, wall = reaped_cpu(), time.monotonic() - began
    status, code, reason = verdict(watch, order["limits"], cpu)
    files, wrote = collect(home, order)
    clear(os.path.dirname(box))
    if wrote > order["limits"]["disk_mb"] << 20 and status in ("finished", "failed"):
        status, code, reason = "killed", None, f"wrote more than {order['limits']['disk_mb']} MB"
    kept = [tail.kept() for tail in tails]
    return {
        "status": status,
        "exit_code": code,
        "stdout": base64.b64encode(kept[0]).decode(),
        "stderr": base64.b64encode(kept[1]).decode(),
        "dropped": sum(tail.seen for tail in tails) - sum(map(len, kept)),
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "files": files,
        "reason": reason,
        "own_user": user is not None,
    }


def own_user() -> int | None:
    """A user id for this run alone. None: this process isn't root, has no ids to give (a container without
    root), or other users may not read its Python."""
    if os.geteuid() != 0:
        return None
    for path in (sys.executable, os.__file__):
        path = os.path.realpath(path)
        while path != "/":
            if not os.stat(path).st_mode & stat.S_IXOTH and not os.path.isfile(path):
                return None
            path = os.path.dirname(path)
    user = random.SystemRandom().randrange(30000, 60000)
    try:
        with open("/proc/self/uid_map") as file:
            ranges = [[int(word) for word in line.split()] for line in file]
    except OSError:
        return None
    return user if any(first <= user < first + count for first, _, count in ranges) else None


def give(box: str, user: int) -> None:
    """Give the box to the program's user; the folder around it can be traversed, not listed."""
    os.chmod(os.path.dirname(box), 0o711)
    for folder, _, names in os.walk(box):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(path, user, user)
    os.chmod(box, 0o700)


def start(order: dict[str, Any], box: str, user: int | None) -> tuple[subprocess.Popen[bytes], list[Tail]]:
    """Start the program; also returns the `Tail`s of its stdout and of its stderr."""
    limits, home = order["limits"], os.path.join(box, "work")
    main, stdin = (os.path.join(box, order["names"][name]) for name in ("code", "stdin"))
    bounds = [
        (resource.RLIMIT_CPU, math.ceil(limits["cpu_seconds"]) + 1),
        (resource.RLIMIT_AS, limits["memory_mb"] << 20),
        (resource.RLIMIT_FSIZE, limits["disk_mb"] << 20),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CORE, 0),
    ]
    if user is not None:  # the kernel counts by user, and the server's user has other processes
        bounds.append((resource.RLIMIT_NPROC, limits["processes"]))

    def confine() -> None:
        for name, bound in bounds:
            hard = resource.getrlimit(name)[1]
            bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
            resource.setrlimit(name, (bound, bound))
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for capability in range(64):  # root without capabilities can't trace this process
            prctl(PR_CAPBSET_DROP, capability)
        prctl(PR_SET_NO_NEW_PRIVS, 1)

    environment = {
        "PATH": os.path.dirname(sys.executable) + ":/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "TMPDIR": os.path.join(box, "tmp"),
        "LANG": "C.UTF-8",
        "PYTHONUTF8": "1",
        "PYTHONPATH": home,
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with open(stdin, "rb") as given:
        os.unlink(stdin)
        child = subprocess.Popen(
            [*COMMANDS[order["language"]], main, *order["argv"]],
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=home,
            env=environment,
            start_new_session=True,
            preexec_fn=confine,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
    assert child.stdout is not None and child.stderr is not None
    keep = limits["output_kb"] << 10
    return child, [Tail(child.stdout, keep), Tail(child.stderr, keep)]


class Tail:
    """The end of a stream."""

    def __init__(self, stream: IO[bytes], keep: int) -> None:
        self.fd, self.keep, self.seen, self.bytes = stream.fileno(), keep, 0, bytearray()
        self.stream = stream
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

    def __init__(self, limits: dict[str, Any], child: int, tails: list[Tail]) -> None:
        self.limits, self.child, self.tails = limits, child, tails
        self.ended: int | None = None
        self.status, self.reason = "", ""
        self.selector = selectors.DefaultSelector()
        for tail in tails:
            self.selector.register(tail.fd, selectors.EVENT_READ, tail)

    def until_it_ends(self) -> None:
        """Read until the program ends by itself or reaches a limit."""
        deadline, scan = time.monotonic() + self.limits["wall_seconds"], 0.0
        while self.ended is None and not self.status:
            for key, _ in self.selector.select(TICK if self.selector.get_map() else 0):
                if not key.data.read():
                    self.selector.unregister(key.fd)
            if not self.selector.get_map():
                time.sleep(TICK / 10)
            self.ended = reap(self.child)
            now = time.monotonic()
            if sum(tail.seen for tail in self.tails) > self.limits["flood_bytes"]:
                self.status, self.reason = "killed", "would not stop writing"
            elif now > deadline:
                self.status, self.reason = "timeout", f"wall time: {self.limits['wall_seconds']:g} s"
            elif now - scan > SCAN:
                scan, living = now, family()
                if sum(living.values()) + reaped_cpu() > self.limits["cpu_seconds"]:
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


def verdict(watch: Watch, limits: dict[str, Any], cpu: float) -> tuple[str, int | None, str]:
    """(status, exit code, reason) of the program."""
    if watch.status == "killed" or watch.reason:
        return watch.status, None, watch.reason
    stopped = watch.status == "timeout" or watch.ended == -signal.SIGXCPU
    if stopped or cpu > limits["cpu_seconds"]:
        return "timeout", None, f"CPU time: {limits['cpu_seconds']:g} s"
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


def family() -> dict[int, float]:
    """{pid: CPU seconds, with reaped children} of all descendants of this process; empty without /proc."""
    parents, used = {}, {}
    tick = os.sysconf("SC_CLK_TCK")
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        parents[pid], used[pid] = int(fields[1]), sum(map(int, fields[11:15])) / tick
    ours, grown = {os.getpid()}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in ours} - ours
        ours, grown = ours | more, bool(more)
    return {pid: used[pid] for pid in ours - {os.getpid()}}


def reaped_cpu() -> float:
    """CPU seconds of reaped children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
        left = family()
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


def collect(home: str, order: dict[str, Any]) -> tuple[dict[str, str], int]:
    """({path: base64} of files that match the globs, bytes of all files); links are ignored."""
    files: dict[str, str] = {}
    wrote, bound = 0, order["limits"]["disk_mb"] << 20
    folders = [home]
    while folders:
        try:
            entries = sorted(os.scandir(folders.pop()), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            relative = os.path.relpath(entry.path, home)
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            if not entry.is_file(follow_symlinks=False):
                continue
            wrote += entry.stat(follow_symlinks=False).st_size
            wanted = any(matches(relative.split("/"), glob.split("/")) for glob in order["collect"])
            if not wanted or wrote > bound:
                continue
            try:
                relative.encode()
                with open(entry.path, "rb") as file:
                    files[relative] = base64.b64encode(file.read()).decode()
            except (OSError, UnicodeError):  # unreadable, or a name that is not valid text
                continue
    return files, wrote


def clear(folder: str) -> None:
    """Remove the folder's contents. The server's own removal raises for folders that are nested too deep, so
    what is not removed in time is cut into trees that the server can remove."""
    roots = [os.path.join(folder, name) for name in os.listdir(folder)]
    run_quietly("chmod", "-R", "u+rwX", *roots)
    cut, folders = 0, [folder]
    while folders:
        try:
            inner = [entry.path for entry in os.scandir(folders.pop()) if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        for path in inner:
            if len(path) > len(folder) + LONG:
                cut, place = cut + 1, os.path.join(folder, f"cut-{cut}")
                os.rename(path, place)
                path = place
            folders.append(path)
    run_quietly("rm", "-rf", *(os.path.join(folder, name) for name in os.listdir(folder)))


def run_quietly(*command: str) -> None:
    """Run a system tool within `PATIENCE`; its success is not checked."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(command, stderr=subprocess.DEVNULL, timeout=PATIENCE, check=False)


def matches(path: list[str], glob: list[str]) -> bool:
    """Whether a path fits a glob, both as lists of names; `**` stands for any folders."""
    if not glob or glob == ["**"]:  # at the end, all below
        return bool(path) == bool(glob)
    if glob[0] == "**":
        return matches(path, glob[1:]) or (bool(path) and matches(path[1:], glob))
    return bool(path) and fnmatch.fnmatchcase(path[0], glob[0]) and matches(path[1:], glob[1:])
