"""The protections of sandbox `local`, and what is open without namespaces, for `coterie sandbox check`; tests
compare docs/sandbox.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Protection(NamedTuple):
    """One protection, and whether it is active on this host."""

    name: str
    active: bool
    stops: str
    needs: str
    """The kernel feature that it needs; empty: every Linux has it."""


class Open(NamedTuple):
    """Something that a program can do here, which namespaces would stop."""

    name: str
    what: str


_SPACES = "user namespaces"
CLOCKED = (
    ("rlimits", "", "memory bombs, huge files, too many open files, core dumps", ""),
    ("CPU clock", "", "endless loops, in children and threads too, whatever the load", ""),
)
LIMITS = (
    ("wall clock", "", "sleeping or waiting for ever, stopping itself", ""),
    ("bounded output", "", "endless output, and output that nobody reads", ""),
    ("files by our hand", "", "links and special files in what is brought back", ""),
    ("no privileges", "", "becoming another user by a set-user-id program; no capability is left", ""),
)
"""Every sandbox of Coterie's has these two groups."""
_TABLE = (
    (
        "own process",
        "",
        "finding our data in its memory: a worker is an interpreter of its own, never a fork of ours",
        "",
    ),
    ("clean environment", "", "reading API keys from its environment", ""),
    ("closed files", "", "using our open files, sockets and standard streams", ""),
    *CLOCKED,
    (
        "clock of children",
        "clock",
        "loops in children that are waited for; otherwise such a child counts when the program has ended",
        "a /proc that shows processes",
    ),
    *LIMITS,
    ("user namespace", "alone", "having any user's rights on the host", _SPACES),
    ("pid namespace", "alone", "seeing and signalling other processes, outliving the run", _SPACES),
    ("mount namespace", "alone", "seeing or writing the host's files, /proc, other runs", _SPACES),
    ("limited tmpfs", "alone", "floods of files: all that is written has one bound", _SPACES),
    ("network namespace", "alone", "any network, loopback too", _SPACES),
    ("ipc and uts namespaces", "alone", "the host's shared memory, queues and name", _SPACES),
    ("process count", "processes", "fork bombs, counted for this run alone", "Linux 5.14, or root"),
    (
        "system call filter",
        "seccomp",
        "ptrace, mounts, new namespaces, bpf, keyrings, io_uring, shared memory that outlives a run, "
        "sockets of other families; without namespaces, hiding children from the CPU clock",
        "seccomp on x86_64 or aarch64",
    ),
)
_INSTEAD = (
    (
        "hidden memory",
        "hidden",
        "using memory, environment and open files of our process and its workers by /proc",
        "",
    ),
    (
        "user of its own",
        "users",
        "reaching the processes and private files of us, of other runs and of other users",
        "root that may change its user",
    ),
    (
        "Landlock",
        "landlock",
        "opening, making, moving, removing files: all but the system's (to read) and the run's own",
        "Linux 6.2 with Landlock",
    ),
)
"""Reported only without namespaces, which make them unnecessary."""
_FILTER_OUTSIDE = (
    "any socket but pairs of streams, so any network; signals to other processes, the kernel's included; "
)
_FILTER_SHARED = "changes of modes, owners, times and attributes of files; "
_FORGED = "a candidate can read the tests, and forge the verdict by files in the folder of the tests' side"


def protections(hello: Mapping[str, Any]) -> tuple[Protection, ...]:
    """The protections, from a worker's report on its host (inside/users.py)."""
    first = next(at for at, row in enumerate(_TABLE) if row[1] == "alone")
    table = _TABLE if hello.get("alone") else (*_TABLE[:first], *_INSTEAD, *_TABLE[first:])
    return tuple(
        Protection(name, not key or bool(hello.get(key)), _stops(name, stops, hello), needs)
        for name, key, stops, needs in table
    )


def _stops(name: str, stops: str, hello: Mapping[str, Any]) -> str:
    if name == "system call filter" and not hello.get("alone"):
        return _FILTER_OUTSIDE + ("" if hello.get("users") else _FILTER_SHARED) + stops
    if name == "no privileges" and hello.get("reads") == "capability":
        kept = "the one capability left is to read files, since only root can read this Python"
        return stops.replace("no capability is left", f"{kept}; Landlock decides which")
    return stops


def left_open(hello: Mapping[str, Any]) -> tuple[Open, ...]:
    """What is open without namespaces; with them nothing is."""
    if hello.get("alone"):
        return ()
    users, landlock = hello.get("users"), hello.get("landlock")
    rows = []
    if landlock:
        rows.append(("names of files", "names, sizes, times and attributes of all files; nothing is opened"))
    elif users:
        rows += [
            ("files for all", "reading what every user may read, and the names of all processes in /proc"),
            (
                "shared folders",
                "writing where every user may write, e.g. /tmp; it stays, and later runs find it",
            ),
        ]
    else:
        rows += [
            (
                "files of the user",
                "reading and writing what the user of the run may; it stays, and later runs find it",
            ),
            ("other processes", "memory, environment and open files of the user's other processes, in /proc"),
        ]
    if not hello.get("apart"):
        rows.append(("forged verdicts", _FORGED))
    if not users and hello.get("bounded"):
        rows.append(
            ("counts by user", "taking processes from the bound of the user's other runs, which it shares")
        )
    elif not users:
        rows.append(
            ("processes of root", "fork bombs: the kernel bounds no processes of root, so only the clocks do")
        )
    if not hello.get("seccomp"):
        rows.append(
            (
                "system calls",
                "what the filter would stop, sockets and signals to its user's processes included",
            )
        )
    rows += [
        (
            "times of processes",
            "CPU time, parent, user, process group, session and CPUs of every process, by its number",
        ),
        ("locks", "flock on files that it may read: who locks the same file waits until the run ends"),
        ("disk", "filling the disk with many files: each file has a bound, their sum has none"),
        ("lost workers", "outliving its run where its worker is killed from outside, e.g. for memory"),
    ]
    return tuple(Open(*row) for row in rows)


def warnings(hello: Mapping[str, Any]) -> tuple[str, ...]:
    """What else the user of the sandbox should know."""
    texts = []
    if hello.get("reads") == "preloaded":
        texts.append(
            "programs can import only what workers have imported, since other users can't read this Python: "
            "install Python where every user can read it"
        )
    if forgeable(hello):
        texts.append(forgeable(hello))
    return tuple(texts)


def forgeable(hello: Mapping[str, Any]) -> str:
    """Why verdicts could be forged on this host; empty: they can't."""
    apart = not hello or hello.get("apart")
    return "" if apart else f"the judge's two sides can't be kept apart: {_FORGED}"
