"""What a SandboxFusion server is like, found out by harmless programs: what it can import, and what keeps
runs apart there, for `coterie sandbox check`. A test compares docs/sandbox_fusion.md."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from coterie.backends.sandboxes.distributions import check_version, requirement_of
from coterie.backends.sandboxes.fusion_wire import WrapperReport
from coterie.backends.sandboxes.protections import CLOCKED, LIMITS as COMMON_LIMITS, Protection
from coterie.core.errors import ConfigError
from coterie.core.protocols import Limits, Program, Ran

LIMITS = Limits(cpu_seconds=5, wall_seconds=10)
LEAST, SCOPES = 3, 6
"""Landlock's ABIs of inside/landlock.py, which only Linux can import; this process may run elsewhere."""

VICTIM = Program(
    code="""\
import json, os
os.write(3, json.dumps([os.getpid(), os.path.dirname(os.path.abspath(__file__))]).encode())
os.write(4, os.read(3, 4096))
""",
    limits=LIMITS,
)
"""In place of the tests' side: it tells where it is, and reports what the other could do."""

INTRUDER = Program(
    code="""\
import json, os, socket
victim, folder = json.loads(os.read(3, 4096))
ways = {
    "signal the tests' side": lambda: os.kill(victim, 0),
    "signal its wrapper": lambda: os.kill(os.getppid(), 0),
    "open the report": lambda: open(f"/proc/{victim}/fd/4", "wb"),
    "read the memory of the tests' side": lambda: open(f"/proc/{victim}/mem", "rb"),
    "list the folder of the tests' side": lambda: os.listdir(folder),
    "list the folder of its run": lambda: os.listdir(os.path.dirname(folder)),
    "open a socket": lambda: socket.socket(),
    "see processes": lambda: os.listdir("/proc"),
}
able = []
for name, way in ways.items():
    try:
        way()
    except OSError:
        continue
    able.append(name)
os.write(3, json.dumps(able).encode())
""",
    limits=LIMITS,
)
"""In place of the candidate: it tries what a hostile one would."""

HARMLESS = ("see processes",)
"""What a program may do: with a user of its own it can do nothing to them."""


class Probed(NamedTuple):
    """What was found out about a server."""

    report: WrapperReport
    able: frozenset[str]
    """What the intruder could do."""

    @property
    def shared(self) -> str:
        """Why runs are not kept apart; empty: they are."""
        open_ways = sorted(self.able - {*HARMLESS})
        if self.report.apart and open_ways:
            return f"a program can {', '.join(open_ways)}"
        return self.report.shared


def probed(report: WrapperReport, written: bytes) -> Probed:
    """Raises ValueError where the two programs did not report."""
    able = json.loads(written)
    if not isinstance(able, list):
        raise ValueError("no list")
    return Probed(report, frozenset(map(str, able)))


_USERS = "a server that is root, and whose Python other users can read"
_TABLE = (
    ("clean environment", "", "reading the server's environment", ""),
    ("closed files", "", "writing to the server's open files and sockets", ""),
    *CLOCKED,
    *COMMON_LIMITS,
    ("hidden wrapper", "", "reading the nonce that a report must have", ""),
    ("own users", "users", "signals to other runs, and reading their files and memory", _USERS),
    ("process count", "users", "fork bombs; without it, processes are counted some times a second", _USERS),
    (
        "Landlock",
        "landlock",
        "opening the server's files, /proc and other runs' folders",
        "Linux 6.2 with Landlock",
    ),
    ("Landlock's scopes", "scopes", "signals to other runs of the same user", "Linux 6.12 with Landlock"),
    (
        "system call filter",
        "filtered",
        "any socket, and with it programs that the server runs for a program; ptrace, mounts, namespaces, "
        "hiding children from the CPU clock",
        "seccomp on x86_64 or aarch64",
    ),
    (
        "runs kept apart",
        "apart",
        "verdicts that a candidate forges",
        "own users or Landlock's scopes, and the system call filter",
    ),
)


def protections(found_out: Probed) -> tuple[Protection, ...]:
    """The protections of wrapped programs on this server."""
    report, able = found_out
    active = {
        "": True,
        "users": report.apart == "users",
        "landlock": report.landlock >= LEAST and "see processes" not in able,
        "scopes": report.landlock >= SCOPES and "signal the tests' side" not in able,
        "filtered": report.filtered and "open a socket" not in able,
        "apart": not found_out.shared,
    }
    return tuple(Protection(name, active[key], stops, needs) for name, key, stops, needs in _TABLE)


_CODE = """\
import importlib, importlib.metadata as metadata, json
for name in json.loads(input()):
    row = [name, "", ""]
    try:
        distribution = metadata.distribution(name)
        row[1] = distribution.version
        stated = (distribution.read_text("top_level.txt") or "").split()
        files = {file.parts[0] for file in distribution.files or () if file.name.endswith(".py")}
        for top in stated or sorted({file.partition(".")[0] for file in files}):
            if top.isidentifier() and top[0] != "_" and top not in ("test", "tests"):
                importlib.import_module(top)
    except metadata.PackageNotFoundError:
        row[2] = "it is not installed there"
    except BaseException as error:
        row[2] = f"{type(error).__name__}: {error}"
    print(json.dumps(row), flush=True)
"""


async def check_imports(
    packages: Sequence[str], run: Callable[[Program], Awaitable[Ran]], limits: Limits, url: str, path: str
) -> dict[str, str]:
    """Have a program on the server import the distributions.

    Args:
        packages: as in the setting, with versions or without.
        run: runs a program there.
        limits: of the sandbox's programs: an import must fit into them.
        path: of the setting, for messages.

    Returns:
        The versions there, by name.

    Raises:
        ConfigError: one can't be imported, or has another version.
    """
    named = [requirement_of(text, path) for text in packages]
    names = [requirement.name for requirement in named]
    ran = await run(Program(code=_CODE, stdin=json.dumps(names) + "\n", limits=limits))
    rows = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    for requirement, row in zip(named, rows, strict=False):
        name, version, problem = row
        if problem:
            raise ConfigError(
                f"programs on {url} can't import {name}",
                path=path,
                why=problem,
                fix=f"install it for the server's Python: pip install {name}",
            )
        check_version(requirement, version, path, " on the server")
    if len(rows) < len(named):
        ending = ran.reason or ran.stderr.strip().rpartition("\n")[2] or ran.status
        raise ConfigError(
            f"a program on {url} ended while it imported {names[len(rows)]}",
            path=path,
            why=ending,
            fix="raise memory_mb (2048 for work with data) or cpu_seconds, or install the package anew",
        )
    return {row[0]: row[1] for row in rows}
