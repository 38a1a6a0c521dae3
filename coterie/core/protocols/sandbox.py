"""What crosses the line between our process and a program that a model wrote: plain values, both ways.

A `Sandbox` (core/protocols.py) runs a `Program` and says what it did, or judges a `Judged` and says which
tests passed. What ends by the program's own doing is a result, good or bad. What ends by ours (a worker
that was killed, a server that answers 500) is a `SystemFault`: its score is missing. A program that kills
its sandbox twice is a `PolicyFault`: it gets the floor (invariant 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from pydantic import Field

from coterie.core.plugins import PluginConfig

Status = Literal["finished", "failed", "timeout", "killed"]


class Limits(PluginConfig):
    """What one run may use. CPU time decides verdicts; wall time is only a backstop, so load changes no
    reward."""

    cpu_seconds: float = Field(5.0, gt=0, description="CPU time of the program, its children included.")
    wall_seconds: float = Field(30.0, gt=0, description="Backstop for programs that wait for ever.")
    memory_mb: int = Field(512, ge=16, description="Address space of one process, in 2^20 bytes.")
    disk_mb: int = Field(32, ge=1, description="All that it may write, in 2^20 bytes.")
    processes: int = Field(16, ge=1, description="Processes and threads at a time.")
    open_files: int = Field(64, ge=8)
    output_kb: int = Field(64, ge=1, description="Kept of stdout and of stderr, in 2^10 bytes: the end.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program and what it is given."""

    code: str
    language: str = "python"
    stdin: str = ""
    argv: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By path relative to the working folder."""
    collect: tuple[str, ...] = ()
    """Globs of files to bring back, relative to the working folder."""
    limits: Limits | None = None
    """None: the sandbox's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a program did."""

    status: Status
    """`finished`: exit code 0; `failed`: another; `timeout`: of CPU or wall time; `killed`: by a signal,
    such as at a limit of memory, or because it would not stop writing."""
    exit_code: int | None
    """None where a signal or a limit ended it."""
    stdout: str = ""
    """The end of it, where it was longer than `limits.output_kb`."""
    stderr: str = ""
    dropped: int = 0
    """Bytes of output that were not kept."""
    cpu_seconds: float | None = None
    wall_seconds: float = 0.0
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What `collect` found, by path."""
    reason: str = ""
    """In words, where it did not finish: which limit, which signal."""

    @property
    def ok(self) -> bool:
        return self.status == "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A candidate and the tests it must pass; the two never share a process."""

    candidate: str
    """The program under test: its functions are called over a pipe."""
    tests: str
    """Python in which every `assert` is a test. It sees the names in `calls`, and not the candidate's
    memory."""
    calls: tuple[str, ...]
    """Functions of the candidate that the tests call."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Given to the candidate."""
    limits: Limits | None = None
    """Of each side; None: the sandbox's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestFailure:
    """One test that did not pass."""

    __test__ = False  # pytest takes every class called Test* for one of its own

    line: int
    """In `Judged.tests`, from 1."""
    source: str
    """The assert statement."""
    error: str
    """Type of the exception, such as AssertionError; `NotReached` where nothing executed it."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the judge found. A test passes if it was executed and held every time."""

    passed: int
    total: int
    failures: tuple[TestFailure, ...] = ()
    """The first ones."""
    candidate: str = ""
    """How the candidate ended before its tests were done: `exit code 0`, `timeout`; empty: it answered to
    the end."""
    stdout: str = ""
    """The candidate's."""
    stderr: str = ""

    @property
    def ok(self) -> bool:
        """All passed, and there were some."""
        return self.total > 0 and self.passed == self.total


@runtime_checkable
class Sandbox(Protocol):
    """Runs programs that a model wrote, never in our process.

    Raises SystemFault where the run ended by ours, PolicyFault where a program killed its sandbox twice.
    """

    async def open(self) -> None: ...

    async def run(self, program: Program) -> Ran:
        """What the program did; a crash, a time-out and a killed program are results."""

    async def judge(self, judged: Judged) -> Verdict:
        """Which tests the candidate passes; it runs in another process than they do."""

    async def close(self) -> None: ...
