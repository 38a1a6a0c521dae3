"""The protections of sandbox `local`, for `coterie sandbox check`; a test compares docs/sandbox.md."""

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


_SPACES = "user namespaces"
_TABLE = (
    (
        "own process",
        "",
        "reading our memory: a worker is an interpreter of its own, never a fork of ours",
        "",
    ),
    ("clean environment", "", "reading API keys from the environment", ""),
    ("closed files", "", "writing to our files, sockets and standard streams", ""),
    ("rlimits", "", "memory bombs, huge files, too many open files, core dumps", ""),
    ("CPU clock", "", "endless loops, in children and threads too, whatever the load", ""),
    (
        "clock of children",
        "clock",
        "loops in children that are waited for; otherwise such a child counts when the program has ended",
        "a /proc that shows processes",
    ),
    ("wall clock", "", "sleeping or waiting for ever, stopping itself", ""),
    ("bounded output", "", "endless output, and output that nobody reads", ""),
    ("files by our hand", "", "links and special files in what is brought back", ""),
    ("no privileges", "", "becoming somebody else by a set-user-id program; no capability is left", ""),
    ("user namespace", "alone", "being anybody on the host", _SPACES),
    ("pid namespace", "alone", "seeing and signalling other processes, outliving the run", _SPACES),
    ("mount namespace", "alone", "seeing or writing the host's files, /proc, other runs", _SPACES),
    ("limited tmpfs", "alone", "floods of files: all that is written has one bound", _SPACES),
    ("network namespace", "alone", "any network, loopback too", _SPACES),
    ("ipc and uts namespaces", "alone", "the host's shared memory, queues and name", _SPACES),
    ("process count", "processes", "fork bombs, counted for this worker alone", "Linux 5.14"),
    (
        "system call filter",
        "seccomp",
        "ptrace, mounts, new namespaces, bpf, keyrings, io_uring, shared memory that outlives a run, "
        "sockets of other families; without namespaces, hiding children from the CPU clock",
        "seccomp on x86_64 or aarch64",
    ),
)


def protections(hello: Mapping[str, Any]) -> tuple[Protection, ...]:
    """The protections, from a worker's report on its host: {"alone", "clock", "processes", "seccomp"}."""
    return tuple(
        Protection(name, not key or bool(hello.get(key)), stops, needs) for name, key, stops, needs in _TABLE
    )
