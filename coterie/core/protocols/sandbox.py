"""The protocol of kind `sandbox`, and the plain values that go to a model-written program and come back.

A `Sandbox` runs a `Program` or tests a `Judged` candidate. An end that the program caused (a crash, a
time-out) is a result. An end that it did not cause (a killed worker, an HTTP 500) is a `SystemFault`. A
program that kills its sandbox twice is a `PolicyFault`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from pydantic import Field

from coterie.core.plugins import PluginConfig

Status = Literal["finished", "failed", "timeout", "killed"]
"""How a program ended."""


class Limits(PluginConfig):
    """Limits of one run. CPU time decides verdicts, so the load of the machine changes no reward."""

    cpu_seconds: float = Field(5.0, gt=0, le=1e6, description="CPU time of the program and its children.")
    wall_seconds: float = Field(30.0, gt=0, le=1e6, description="Wall time, for programs that wait for ever.")
    memory_mb: int = Field(512, ge=32, le=2**20, description="Address space of a process, in 2^20 bytes.")
    disk_mb: int = Field(32, ge=1, le=2**20, description="All files that it writes, in 2^20 bytes.")
    processes: int = Field(16, ge=1, le=2**20, description="Processes and threads at a time.")
    open_files: int = Field(64, ge=8, le=2**20)
    output_kb: int = Field(64, ge=1, le=2**20, description="Kept end of stdout and stderr, in 2^10 bytes.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program and its inputs."""

    code: str
    language: str = "python"
    stdin: str = ""
    argv: tuple[str, ...] = ()
    files: Mapping[str, bytes | memoryview] = field(default_factory=dict)
    """Contents by path, relative to the working folder."""
    collect: tuple[str, ...] = ()
    """Globs of the files to return, relative to the working folder."""
    limits: Limits | None = None
    """None: the limits of the sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Result of a program."""

    status: Status
    """`finished`: exit code 0; `failed`: another exit code; `timeout`: of CPU or wall time; `killed`: by a
    signal, e.g. at a limit of memory or of output."""
    exit_code: int | None
    """None where a signal or a limit ended the program."""
    stdout: str = ""
    """At most the last `limits.output_kb`; `stderr` likewise."""
    stderr: str = ""
    dropped: int = 0
    """Bytes of output that were not kept."""
    cpu_seconds: float | None = None
    wall_seconds: float = 0.0
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents of the files that `collect` matched, by path."""
    reason: str = ""
    """The limit or the signal that ended the program, in words."""

    @property
    def ok(self) -> bool:
        return self.status == "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A candidate program and its tests. The two run in separate processes."""

    candidate: str
    """The program under test. The tests call its functions over a pipe."""
    tests: str
    """Python code in which every `assert` is a test. It sees the functions in `calls` and nothing else of the
    candidate."""
    calls: tuple[str, ...]
    """Functions of the candidate that the tests call."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files of the candidate: contents by path, relative to its working folder."""
    limits: Limits | None = None
    """Limits of each of the two processes; None: the limits of the sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestFailure:
    """One test that did not pass."""

    __test__ = False  # or pytest collects it, as every class named Test*

    line: int
    """Line in `Judged.tests`, from 1."""
    source: str
    """The assert statement."""
    error: str
    """Type of the exception, e.g. AssertionError; `NotReached` where the statement was not executed."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of the tests. A test passes if it was executed and held every time."""

    passed: int
    total: int
    failures: tuple[TestFailure, ...] = ()
    """The first failures."""
    candidate: str = ""
    """How the candidate ended before its tests did, e.g. `exit code 0` or `timeout`; else empty."""
    stdout: str = ""
    """Output of the candidate."""
    stderr: str = ""
    warning: str = ""
    """Why the candidate could have forged this verdict, where the sandbox can't keep the two sides apart."""

    @property
    def ok(self) -> bool:
        """Whether there are tests and all of them passed."""
        return self.total > 0 and self.passed == self.total


@runtime_checkable
class Sandbox(Protocol):
    """Runs model-written programs, never in the process of the run.

    Raises:
        SystemFault: the run ended for a reason that the program did not cause.
        PolicyFault: the program killed its sandbox twice.
    """

    async def open(self) -> None: ...

    async def run(self, program: Program) -> Ran:
        """Run a program. A crash, a time-out and a killed program are results."""

    async def judge(self, judged: Judged) -> Verdict:
        """Run the tests of a candidate."""

    async def close(self) -> None: ...
