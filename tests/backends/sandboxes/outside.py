"""Programs that attack a sandbox without namespaces, and the process that is attacked.

    python outside.py '{"without": [...], "folder": ...}'

runs every program in a sandbox with `namespaces: off`, and prints as JSON which of them escaped. It is the
process under attack, so tests start it: it has a secret in its environment, in its memory and in its files.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from coterie.backends.sandboxes.local import LocalSandbox
from coterie.core.errors import PolicyFault
from coterie.core.protocols import Judged, Limits, Program

LIMITS = Limits(
    cpu_seconds=2, wall_seconds=4, memory_mb=256, disk_mb=1, processes=4, open_files=32, output_kb=16
)
SECRET = "of-the-trainer"
PLANTED = b"planted in memory"
SLEEPERS = 8

_BEFORE = """\
import ctypes, fcntl, glob, os, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def escaped(why=""):
    print("ESCAPED", why, flush=True)
def attempt(what, why=""):
    try: done = what()
    except Exception: return
    escaped(why)
def call(what, *arguments):
    if what(*arguments) != -1: escaped(what.__name__)
"""

PROGRAMS = {
    "environment_of_the_trainer": "attempt(lambda: open('/proc/{host}/environ').read())",
    "memory_of_the_trainer": (
        "def write():\n    with open('/proc/{host}/mem', 'r+b', buffering=0) as file:\n"
        "        file.seek({planted})\n        file.write(b'forged')\nattempt(write)"
    ),
    "files_of_the_trainer": "attempt(lambda: open('/proc/{host}/fd/{descriptor}').read())",
    "environment_of_another": "attempt(lambda: open('/proc/{other}/environ').read())",
    "memory_of_another": "attempt(lambda: open('/proc/{other}/mem', 'r+b', buffering=0))",
    "datagram_to_the_trainer": (
        "for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC):\n"
        "    ends = (ctypes.c_int * 2)()\n"
        "    if libc.socketpair(1, kind, 0, ends) == 0:\n"
        "        attempt(lambda: socket.socket(fileno=ends[0]).sendto(b'x', chr(0) + '{name}'), kind)"
    ),
    "connection_to_the_trainer": (
        "attempt(lambda: socket.socket(socket.AF_UNIX).connect(chr(0) + '{name}-stream'))\n"
        "one, other = socket.socketpair()\nattempt(lambda: one.connect(chr(0) + '{name}-stream'))\n"
        "attempt(lambda: one.bind('bound'))\nattempt(lambda: one.listen())"
    ),
    "sockets": (
        "for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 16):\n"
        "    attempt(lambda: socket.socket(family, socket.SOCK_STREAM if family != 16 else 3), family)"
    ),
    "signal_of_the_kernel": (
        "def ask(*how):\n    reader, writer = os.pipe()\n    how[0](reader, *how[1:])\n"
        "    fcntl.fcntl(reader, 10, signal.SIGUSR1)\n"
        "    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)\n    os.write(writer, b'x')\n"
        "for how in ((fcntl.fcntl, 8, {host}), (fcntl.fcntl, 15, struct.pack('ii', 1, {host})),\n"
        "            (fcntl.ioctl, 0x8901, struct.pack('i', {host})),\n"
        "            (fcntl.ioctl, 0x8902, struct.pack('i', {host}))):\n"
        "    try: ask(*how)\n    except OSError: pass\n"
        "time.sleep(.02)"
    ),
    "signals": (
        "attempt(lambda: os.kill({host}, signal.SIGUSR1))\n"
        "attempt(lambda: signal.pidfd_send_signal(os.pidfd_open({host}), signal.SIGUSR1))\n"
        "call(libc.tgkill, {host}, {host}, 10)\ncall(libc.sigqueue, {host}, 10, None)"
    ),
    "limits_of_the_trainer": (
        "import resource\nattempt(lambda: resource.prlimit({host}, resource.RLIMIT_CORE, (0, 0)))"
    ),
    "priority_of_the_trainer": (
        "attempt(lambda: os.setpriority(os.PRIO_PROCESS, {host}, 1))\n"
        "attempt(lambda: os.setpriority(os.PRIO_USER, 0, 1))\n"
        "attempt(lambda: os.sched_setaffinity({host}, os.sched_getaffinity(0)))\n"
        "attempt(lambda: os.sched_setscheduler({host}, os.SCHED_BATCH, os.sched_param(0)))\n"
        "number = {{'x86_64': 251, 'aarch64': 30}}.get(os.uname().machine)\n"
        "if number: call(libc.syscall, number, 1, {host}, 2 << 13 | 7)"
    ),
    "modes_and_times": (
        "def quietly(what, *arguments):\n    try: what(*arguments)\n    except OSError: pass\n"
        "for path in ('{private}', '{folder}'):\n"
        "    quietly(os.chmod, path, 0o711)\n    quietly(os.utime, path, (9, 9))\n"
        "    quietly(os.chown, path, -1, {group})\n    quietly(os.setxattr, path, 'user.x', b'x')"
    ),
    "notices_of_changes": (
        "file = libc.inotify_init()\n"
        "if file >= 0: call(libc.inotify_add_watch, file, b'{private}', 2)"
    ),
    "private_files": (
        "attempt(lambda: open('{private}').read())\nattempt(lambda: open('{private}', 'a').close())\n"
        "attempt(lambda: os.link('{private}', 'link') or open('link').read())\n"
        "attempt(lambda: os.mkdir('{folder}/made'))"
    ),
    "files_for_all": "attempt(lambda: open('{public}').read())\nattempt(lambda: open('/etc/passwd').read())",
    "list_of_processes": "attempt(lambda: os.listdir('/proc'))",
    "shared_folders": "attempt(lambda: open('{shared}/left', 'x').close())",
    "names_of_files": "attempt(lambda: os.stat('{public}'))",
    "times_of_processes": (
        "attempt(lambda: time.clock_gettime((~{host} << 3) | 2))\nattempt(lambda: os.getpgid({host}))\n"
        "attempt(lambda: os.getsid({host}))\nattempt(lambda: os.sched_getaffinity({host}))"
    ),
    "locks": "attempt(lambda: fcntl.flock(os.open('/bin/sh', os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB))",
    "disk": "for n in range(4):\n    with open(str(n), 'wb') as file: file.write(bytes(1 << 20))\nescaped()",
    "fork_bomb_while_others_end": (
        "time.sleep(.6)\ncount = 0\ntry:\n    for _ in range({processes} + 4):\n"
        "        if os.fork() == 0: time.sleep(9)\n        count += 1\nexcept OSError: pass\n"
        "if count > {processes}: escaped(count)"
    ),
    "other_folders": (
        "for path in (os.path.dirname(os.path.dirname(os.getcwd())), '/root', os.path.expanduser('~root')):\n"
        "    attempt(lambda: os.listdir(path), path)"
    ),
}  # fmt: skip
"""Programs by name, for `str.format`."""

_REPORT = b'{"started": true}\n{"total": 1}\n{"passed": 1, "failures": [], "lost": ""}\n'
_FORGED = repr(_REPORT)
_FIND = """\
import os
def boxes():
    base, ours = os.path.split(os.path.dirname(os.getcwd()))
    worker, pid = map(int, ours.split("-"))
    for near in range(pid - 50, pid + 50):
        path = f"{base}/{worker}-{near}"
        if near != pid: yield near, path
"""
CANDIDATES = {
    "report_of_the_tests": (
        _FIND + "import fcntl, signal, socket, glob\n"
        "def f(): return 0\n"
        "for first, _ in boxes():\n"
        "    for path in glob.glob('/proc/[0-9]*/stat'):\n"
        "        try: parent = int(open(path).read().rpartition(')')[2].split()[1])\n"
        "        except (OSError, ValueError): continue\n"
        "        if parent != first: continue\n"
        "        tests = int(path.split('/')[2])\n"
        "        try:\n"
        f"            open(f'/proc/{{tests}}/fd/4', 'wb', buffering=0).write({_FORGED})\n"
        "        except OSError: continue\n"
        "        reader, writer = os.pipe()\n"
        "        fcntl.fcntl(reader, 8, tests)\n"
        "        fcntl.fcntl(reader, 10, signal.SIGKILL)\n"
        "        fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)\n"
        "        os.write(writer, b'x')\n"
    ),
    "module_of_the_tests": (
        _FIND + "def f(): return 0\n"
        "for _, path in boxes():\n"
        "    try: file = open(f'{path}/work/colorsys.py', 'w')\n"
        "    except OSError: continue\n"
        f"    with file: file.write({('import os; os.write(4, ' + _FORGED + '); os.abort()')!r})\n"
    ),
    "text_of_the_tests": (
        _FIND + "def f(): return 0\n"
        "for _, path in boxes():\n"
        "    try: print('ESCAPED', len(open(f'{path}/main.py').read()), flush=True)\n"
        "    except OSError: continue\n"
    ),
}
"""Candidates whose `f` is wrong: a verdict that says otherwise is forged."""
TESTS = "import colorsys\nassert f() == 1"
IMPORTS = """\
import xmlrpc.client, sqlite3, shutil
open('a', 'w').close()
shutil.copy2('a', 'b')
print('imported')
"""


def stated(path: Path) -> tuple[int, int, int, float, list[str]]:
    """Mode, user, group, time of change and attributes of a file."""
    status = path.stat()
    return status.st_mode, status.st_uid, status.st_gid, status.st_mtime, os.listxattr(path)


def restore(path: Path, state: tuple[int, int, int, float, list[str]]) -> None:
    mode, user, group, changed, attributes = state
    os.chown(path, user, group)
    path.chmod(mode & 0o7777)
    os.utime(path, (changed, changed))
    for name in {*os.listxattr(path)} - {*attributes}:
        os.removexattr(path, name)


class Trainer:
    """The process under attack, and what shows that it was attacked."""

    def __init__(self, folder: Path) -> None:
        self.buffer = ctypes.create_string_buffer(PLANTED)
        self.signals: list[int] = []
        for number in (signal.SIGUSR1, signal.SIGIO):
            signal.signal(number, lambda number, _: self.signals.append(number))
        name = f"coterie-test-{os.getpid()}"
        self.datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.datagrams.bind(f"\0{name}")
        self.datagrams.setblocking(False)
        self.stream = socket.socket(socket.AF_UNIX)
        self.stream.bind(f"\0{name}-stream")
        self.stream.listen()
        private, shared = folder / "private", folder / "shared"
        private.mkdir(0o700)
        (private / "secret.txt").write_text(SECRET)
        shared.mkdir()
        shared.chmod(0o777)
        (folder / "public.txt").write_text("public")
        (folder / "public.txt").chmod(0o644)
        self.held = os.open(folder / "held", os.O_CREAT | os.O_RDWR, 0o600)
        os.unlink(folder / "held")
        self.other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        self.sleepers: list[subprocess.Popen[bytes]] = []
        self.targets = {
            "host": os.getpid(), "planted": ctypes.addressof(self.buffer), "other": self.other.pid,
            "descriptor": self.held, "name": name, "private": private / "secret.txt",
            "folder": private, "public": folder / "public.txt", "shared": shared,
            "processes": LIMITS.processes, "group": min(os.getgroups(), default=os.getgid()),
        }  # fmt: skip
        self.stated = {path: stated(path) for path in (private, private / "secret.txt")}

    def harm(self) -> list[str]:
        """What the last program did to this process."""
        harm = [f"signal {number}" for number in self.signals]
        self.signals.clear()
        if self.buffer.value != PLANTED:
            harm.append("memory")
            self.buffer.value = PLANTED
        for path, before in self.stated.items():
            if stated(path) != before:
                harm.append(f"{path.name}: {before} is {stated(path)}")
                restore(path, before)
        with contextlib.suppress(BlockingIOError):
            while True:
                harm.append(f"datagram {self.datagrams.recv(9)!r}")
        return harm

    def start_sleepers(self) -> None:
        command = ["sleep", "60"]
        self.sleepers = [subprocess.Popen(command) for _ in range(SLEEPERS)]

    def end_sleepers(self) -> None:
        for sleeper in self.sleepers:
            sleeper.kill()
            sleeper.wait()
        self.sleepers = []

    def end(self) -> None:
        self.end_sleepers()
        self.other.kill()
        self.other.wait()


async def attacked(sandbox: LocalSandbox, trainer: Trainer, name: str) -> list[str]:
    """How the program harmed the trainer or the next run."""
    counting = name == "fork_bomb_while_others_end"
    if counting:
        trainer.start_sleepers()
    task = asyncio.ensure_future(
        sandbox.run(Program(code=_BEFORE + PROGRAMS[name].format(**trainer.targets)))
    )
    if counting:
        await _program_runs(sandbox, task)
        trainer.end_sleepers()
    ran = await task
    shown = [line for line in ran.stdout.splitlines() if line.startswith("ESCAPED")]
    if not shown and ran.stderr:
        shown.append(f"BROKEN {ran.stderr[-300:]}")
    look = f"import os; print(os.listdir('.'), os.path.exists({str(trainer.targets['shared']) + '/left'!r}))"
    after = await sandbox.run(Program(code=look))
    if after.stdout != "[] False\n":
        shown.append(f"the next run: {after.stdout}")
    Path(trainer.targets["shared"], "left").unlink(missing_ok=True)
    return [*shown, *trainer.harm()]


async def _program_runs(sandbox: LocalSandbox, task: asyncio.Task[Any]) -> None:
    """Wait until the worker has a cell, and the cell a program: its processes have been counted."""
    assert sandbox.pool is not None
    workers = {worker.process.pid for worker in sandbox.pool.workers}
    while not task.done():
        parents = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        if any(parents.get(parent) in workers for parent in parents.values()):
            return
        await asyncio.sleep(0.01)


async def outlived(sandbox: LocalSandbox) -> list[str]:
    """Whether a process lives on when its worker is killed from outside. One of three tries may show it:
    a kernel that refuses a fork for a moment ends a try before it begins."""
    for number in range(3):
        if alive := await _outlived(sandbox, f"out{number}-{os.getpid()}"):
            return [f"ESCAPED {alive}"]
    return []


async def _outlived(sandbox: LocalSandbox, mark: str) -> int:
    """How many processes of this name live on."""
    code = (
        f"import ctypes, os, time\nctypes.CDLL(None).prctl(15, b'{mark}', 0, 0, 0)\n"
        "if os.fork() == 0:\n    os.setsid()\n    time.sleep(9)\ntime.sleep(9)"
    )
    run = asyncio.ensure_future(sandbox.run(Program(code=code)))
    assert sandbox.pool is not None
    pids: set[int] = set()
    for _ in range(2):
        while len(new := _named(mark) - pids) < 2 and not run.done():
            await asyncio.sleep(0.02)
        pids |= new
        for worker in [*sandbox.pool.workers]:
            worker.process.kill()
        await asyncio.sleep(0.1)
    try:
        print(f"{mark}: {pids}, {await run}", file=sys.stderr)
    except PolicyFault as fault:
        print(f"{mark}: {pids}, {fault}", file=sys.stderr)
    await asyncio.sleep(0.2)
    alive = _named(mark)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    return len(alive)


def _named(mark: str) -> set[int]:
    names = set()
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() == mark:
                names.add(int(comm.parent.name))
        except OSError:
            continue
    return names


async def main(order: dict[str, Any]) -> dict[str, Any]:
    trainer = Trainer(Path(order["folder"]))
    sandbox = LocalSandbox(LocalSandbox.Config(workers=1, limits=LIMITS, namespaces="off"))
    sandbox.without = tuple(order["without"])
    await sandbox.open()
    harm, times = {}, {}
    try:
        for name in PROGRAMS:
            began = time.monotonic()
            harm[name] = await attacked(sandbox, trainer, name)
            times[name] = round(time.monotonic() - began, 2)
        verdicts = {}
        for name, candidate in CANDIDATES.items():
            verdicts[name] = []
            for _ in range(order.get("judged", 2)):
                verdict = await sandbox.judge(Judged(candidate=candidate, tests=TESTS, calls=("f",)))
                verdicts[name].append(dataclasses.asdict(verdict))
            shown = [v for v in verdicts[name] if v["passed"] or "ESCAPED" in v["stdout"]]
            harm[name] = [f"{len(shown)} of {len(verdicts[name])}"] if shown else []
        honest = await sandbox.judge(Judged(candidate="def f(): return 1", tests=TESTS, calls=("f",)))
        imported = await sandbox.run(Program(code=IMPORTS))
        harm["outlives_a_lost_worker"] = await outlived(sandbox)
        return {
            "hello": sandbox.hello,
            "protections": [row._asdict() for row in sandbox.report()],
            "open": [row.name for row in getattr(sandbox, "left_open", tuple)()],
            "harm": harm,
            "warnings": sorted({v.get("warning", "") for vs in verdicts.values() for v in vs}),
            "honest": honest.ok,
            "imported": imported.stdout + imported.stderr,
            "times": times,
        }
    finally:
        await sandbox.close()
        trainer.end()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))
