"""The host's side of the judge: the programs that are sent, and the verdict that is made of a report."""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from coterie.backends.sandboxes.judging.test_side import GONE
from coterie.core.errors import SystemFault
from coterie.core.protocols import Judged, Limits, Program, Ran, TestFailure, Verdict

REPORT_BYTES = 1 << 16
"""Most bytes kept of a report; the tests' side writes less."""

ENTRIES = ("test_side", "candidate_side")
"""The modules of the two sides. Where they are loaded, a side is the JSON of the arguments of its `main`."""

_SHARED = ("plain_types", "plain", "changes")
_MODULES = ((*_SHARED, "asserts", ENTRIES[0]), (*_SHARED, ENTRIES[1]))
"""The modules of each side, its entry last."""
_LOAD = """\
import sys, types
def load(packages, sources):
    for package in packages:
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = []
    for name, source in sources:
        module = sys.modules[name] = types.ModuleType(name)
        module.__package__, _, short = name.rpartition(".")
        setattr(sys.modules[module.__package__], short, module)
        exec(compile(source, name.replace(".", "/") + ".py", "exec", dont_inherit=True), module.__dict__)
load({packages!r}, {sources!r})
from {last} import main
main({args})
"""


class _Report(BaseModel):
    """The merged lines of a report."""

    model_config = ConfigDict(extra="forbid")

    started: bool = True
    total: int | None = Field(None, ge=0)
    unreadable: tuple[int, str, str, str] | None = None
    passed: int | None = Field(None, ge=0)
    failures: list[tuple[int, str, str, str]] = []
    """Line, source, type of the error, message."""
    lost: str = ""
    """Why the candidate could no longer be called; empty: it could."""


def programs(judged: Judged, limits: Limits, *, loaded: bool = False) -> tuple[Program, Program]:
    """The two sides of the judge, tests and candidate: programs that are isolated from each other.

    File descriptor 3 of each is one end of a socket pair. File descriptor 4 of the tests' side is write-only
    and leads to the host. When that side ends, the candidate is killed.

    Args:
        limits: the sandbox's limits, for each side; used if `judged` has none.
        loaded: whether the interpreter already has the judge's modules, so that they aren't sent: ENTRIES.
    """
    limits = judged.limits or limits
    # The tests stop themselves shortly before their limits, so that there is time to report.
    wall = limits.wall_seconds - max(0.1 * limits.wall_seconds, min(0.25, 0.5 * limits.wall_seconds))
    arguments = ((judged.tests, list(judged.calls), 0.9 * limits.cpu_seconds, wall), (judged.candidate,))
    tests, candidate = (
        json.dumps(args) if loaded else _code(modules, args)
        for modules, args in zip(_MODULES, arguments, strict=True)
    )
    return Program(code=tests, limits=limits), Program(code=candidate, files=judged.files, limits=limits)


def verdict(report: bytes, tests: Ran, candidate: Ran) -> Verdict:
    """The verdict of a report and of the two sides' ends.

    The report comes from the tests' process, which the candidate can't reach. A report without an outcome
    means that the tests' side ended early, by a limit or by itself; then nothing passes.

    Raises SystemFault if the tests' side ended before it had read a line of the tests.
    """
    contents = _read(report)
    if contents is None:
        raise SystemFault(f"the tests' side of the judge ended before it started: {_how(tests)}")
    if contents.total is None or contents.unreadable is not None:
        failures = [contents.unreadable or (1, "", "Unreadable", f"the tests' side ended: {_how(tests)}")]
    elif contents.passed is None:
        failures = [(1, "", "TestsEnded", f"the tests' side ended before its report: {_how(tests)}")]
    elif contents.total == 0:
        failures = [(1, "", "NoTests", "there is no assert in the tests")]
    else:
        failures = contents.failures
    return Verdict(
        passed=min(contents.passed or 0, contents.total or 0),
        total=contents.total or 0,
        failures=tuple(
            TestFailure(line=line, source=source, error=error, message=message)
            for line, source, error, message in failures
        ),
        candidate=_how(candidate) if contents.lost == GONE else contents.lost,
        stdout=candidate.stdout,
        stderr=candidate.stderr,
    )


def _code(modules: Sequence[str], args: Sequence[Any]) -> str:
    sources = [(f"judging.{name}", source(name)) for name in modules]
    return loading(["judging"], sources, f"judging.{modules[-1]}", ", ".join(map(repr, args)))


def loading(packages: Sequence[str], sources: Sequence[tuple[str, str]], last: str, args: str) -> str:
    """A program that makes modules of their sources, by name, and calls `main` of the last one.

    Args:
        packages: of the modules, outer ones first.
        args: the arguments of `main`, as source.
    """
    return _LOAD.format(packages=list(packages), sources=list(sources), last=last, args=args)


@functools.cache
def source(name: str) -> str:
    """The source of a module of the judge."""
    return importlib.resources.files(__package__).joinpath(f"{name}.py").read_text(encoding="utf-8")


def _read(report: bytes) -> _Report | None:
    """The complete lines of a report; None if there is none, an empty report if a line is malformed."""
    fields: dict[str, Any] = {}
    lines = report.split(b"\n")[:-1]
    try:
        for line in lines:
            fields.update(json.loads(line))
        return _Report.model_validate(fields) if lines else None
    except (ValueError, TypeError, RecursionError):  # model-written tests can write to the report too
        return _Report()


def _how(ran: Ran) -> str:
    """A text about how a side ended."""
    if ran.status in ("finished", "failed"):
        return f"exit code {ran.exit_code}"
    return f"killed ({ran.reason})" if ran.status == "killed" and ran.reason else ran.status
