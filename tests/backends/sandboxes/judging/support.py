"""The judge over plain subprocesses, with the file descriptors that a sandbox gives it."""

from __future__ import annotations

import secrets
import subprocess
import sys

from coterie.backends.sandboxes.judging import (
    REPORT_BYTES,
    programs,
    remote_program,
    remote_verdict,
    verdict,
)
from coterie.backends.sandboxes.judging.pair import Bounds, Side, run_pair
from coterie.core.protocols import Judged, Limits, Ran, Verdict

LIMITS = Limits(cpu_seconds=1, wall_seconds=3, memory_mb=1024)


def judged(candidate: str, tests: str, *calls: str, limits: Limits = LIMITS, **fields) -> Judged:
    return Judged(candidate=candidate, tests=tests, calls=calls or ("f",), limits=limits, **fields)


def by_pair(case: Judged) -> Verdict:
    """The verdict of two connected subprocesses."""
    limits = case.limits or LIMITS
    tests, candidate = programs(case, limits)
    bounds = Bounds(
        cpu=limits.cpu_seconds,
        wall=limits.wall_seconds,
        memory=limits.memory_mb << 20,
        output=limits.output_kb << 10,
        report=REPORT_BYTES,
    )
    report, *sides = run_pair(tests.code, candidate.code, dict(candidate.files), bounds)
    return verdict(report, *map(_ran, sides))


def by_remote(case: Judged) -> Verdict | None:
    """The verdict of one program, read from stdin, as a remote sandbox runs it."""
    nonce = secrets.token_hex(16)
    code = remote_program(case, LIMITS, nonce)
    done = subprocess.run([sys.executable, "-I", "-"], input=code.encode(), capture_output=True, timeout=60)
    assert not done.stderr, done.stderr.decode()
    return remote_verdict(nonce, done.stdout.decode())


def _ran(side: Side) -> Ran:
    return Ran(
        status=side.status,
        exit_code=side.exit_code,
        reason=side.reason,
        cpu_seconds=side.cpu_seconds,
        stdout=side.stdout.decode("utf-8", "replace"),
        stderr=side.stderr.decode("utf-8", "replace"),
    )
