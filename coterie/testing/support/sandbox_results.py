"""The parts of `check_sandbox` on the form of results, on files that are handed on, and on what is left."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from coterie.core.protocols import Program, Ran, TestFailure, Verdict
from coterie.core.protocols.sandbox import Status
from coterie.discovery.members import KeepsFiles, KeptFiles, ReportsProtections
from coterie.testing.support.failure import finite, guarded, require

LEAVE_SECONDS = 5.0
"""Seconds within which the processes of a closed sandbox must end."""


def check_ran(result: Any, where: str) -> None:
    """Raise ConformanceError unless this is a `Ran` with fields of its types."""
    require(isinstance(result, Ran), f"returned {result!r}", where, fix="a coterie.Ran")
    _texts(result, ("stdout", "stderr", "reason"), where)
    _one(result, "status", result.status in get_args(Status), f"one of {', '.join(get_args(Status))}", where)
    code = result.exit_code
    _one(result, "exit_code", code is None or type(code) is int, "an int, or None", where)
    _one(result, "dropped", _count(result.dropped), "a number of bytes, 0 or more", where)
    cpu = result.cpu_seconds
    _one(result, "cpu_seconds", cpu is None or _seconds(cpu), "seconds, 0 or more, or None", where)
    _one(result, "wall_seconds", _seconds(result.wall_seconds), "seconds, 0 or more", where)
    files = result.files
    sound = isinstance(files, Mapping) and all(
        isinstance(path, str) and isinstance(data, bytes) for path, data in files.items()
    )
    _one(result, "files", sound, "contents (bytes) by path (str)", where)


def check_verdict(verdict: Any, tests: int, where: str) -> None:
    """Raise ConformanceError unless this is a `Verdict` on so many tests."""
    require(isinstance(verdict, Verdict), f"returned {verdict!r}", where, fix="a coterie.Verdict")
    _texts(verdict, ("candidate", "stdout", "stderr", "warning"), where)
    _one(verdict, "total", _count(verdict.total), "a number of tests", where)
    same = verdict.total == tests
    _one(verdict, "total", same, f"{tests}: every assert statement is a test, reached or not", where)
    passed = _count(verdict.passed) and verdict.passed <= verdict.total
    _one(verdict, "passed", passed, "a number of tests from 0 to `total`", where)
    failures = verdict.failures
    sound = isinstance(failures, (tuple, list)) and all(
        isinstance(failure, TestFailure)
        and type(failure.line) is int
        and all(isinstance(text, str) for text in (failure.source, failure.error, failure.message))
        for failure in failures
    )
    _one(verdict, "failures", sound, "a tuple of coterie TestFailure (line: int; texts)", where)


def check_report(sandbox: Any, name: str) -> None:
    """Raise ConformanceError unless `report`, where the sandbox has it, gives named tuples."""
    if not isinstance(sandbox, ReportsProtections):
        return
    where, fix = f"{name}.report", "a sequence of named tuples (name, active, stops, needs)"
    with guarded(where, fix):
        rows = list(sandbox.report())
    for row in rows:
        texts = [getattr(row, field, None) for field in ("name", "stops", "needs")]
        sound = isinstance(row, tuple) and all(isinstance(text, str) for text in texts)
        sound = sound and type(getattr(row, "active", None)) is bool and hasattr(row, "_asdict")
        require(sound, f"gives {row!r}", where, fix=fix)


def children() -> set[int]:
    """The child processes of this process; none where there is no /proc."""
    pids = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                pids.add(int(stat.parent.name))
        except OSError:
            continue
    return pids


async def longest_pause() -> float:
    """Until it is cancelled: the longest time in which the event loop did nothing else."""
    longest, last = 0.0, time.monotonic()
    try:
        while True:
            await asyncio.sleep(0.05)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
    except asyncio.CancelledError:
        return max(longest, time.monotonic() - last)


def _texts(value: Any, fields: tuple[str, ...], where: str) -> None:
    for field in fields:
        _one(value, field, isinstance(getattr(value, field), str), "a str", where)


def _one(value: Any, field: str, sound: object, expected: str, where: str) -> None:
    actual = getattr(value, field)
    what = f"{type(value).__name__}.{field} is {actual!r} ({type(actual).__name__})"
    require(sound, what[:400], where, fix=expected)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _seconds(value: Any) -> bool:
    return finite(value) and value >= 0


async def check_imported(box: Any, module: str) -> None:
    """Check that programs and candidates import a module, and change it for nobody else.

    Args:
        box: runs programs: the `_Sandbox` of the check.
    """
    where, fix = f"{box.name}.run", f"show {module} to programs, read-only"
    code = (
        f"import importlib, os\nmodule = importlib.import_module({module!r})\n"
        "print(getattr(module, 'coterie_mark', None))\nmodule.coterie_mark = 1\n"
        "for path in (module.__file__, os.path.join(os.path.dirname(module.__file__), 'coterie_mark.py')):\n"
        "    try: open(path, 'a').close()\n"
        "    except OSError: continue\n"
        "    print('writes to', path)\n"
    )
    for _ in range(2):
        result = await box.ran(code)
        box.ended(result, "finished", 0, f"a program that imports {module}")
        writes = "writes to" in result.stdout
        require(not writes, f"lets programs change {module}: {result.stdout}", where, fix=fix)
        box.same(result.stdout, "None\n", f"of {module} a program sees what another one set:", fix)
    verdict = await box.judged(f"import {module}\ndef double(n):\n    return 2 * n\n")
    passed = verdict is not None and verdict.ok
    what = f"a correct candidate that imports {module} gets {verdict!r}"[:400]
    require(passed, what, f"{box.name}.judge", fix=fix)


async def check_left(box: Any, before: set[int]) -> None:
    """Check that a closed sandbox leaves no child process.

    Args:
        box: the `_Sandbox` of the check.
        before: child processes before it was opened.
    """
    until = time.monotonic() + LEAVE_SECONDS
    while left := children() - before:
        what = f"leaves {len(left)} child processes behind"
        require(time.monotonic() < until, what, f"{box.name}.close", fix="end them, and wait for them")
        await asyncio.sleep(0.05)


_LIST = """\
import os
for folder, _, names in os.walk('.'):
    for name in names:
        path = os.path.join(folder, name)[2:]
        print(path, open(path).read())
"""


async def check_kept(box: Any) -> None:
    """Check that programs find the files of one another that they are given, and no others.

    Args:
        box: runs programs: the `_Sandbox` of the check. A sandbox without `run_on` passes.
    """
    if not isinstance(box.sandbox, KeepsFiles):
        return
    write = "open('a', 'w').write('one')\nopen('in', 'a').write('!')\nimport os\nos.symlink('/', 'link')\n"
    first = await _left(box, write, KeptFiles(), {"a": "one"})
    change = _LIST + "open('a', 'w').write({0!r})\nos.makedirs('deep')\nopen('deep/{0}', 'w').write('')"
    listed = "a one\nin given\n"
    branches = [
        await _left(box, change.format(name), first, {"a": name, f"deep/{name}": ""}, listed)
        for name in ("two", "three")
    ]
    await _left(box, _LIST, branches[0], {"a": "two", "deep/two": ""}, "a two\ndeep/two \nin given\n")
    await _left(box, "import os\nos.remove('a')\nraise ValueError", first, {})
    large = await _left(box, "open('b', 'w').write('x' * (3 << 19))", first, {"a": "one"}, most_mb=1)
    require(
        large.files == first.files,
        "names a content otherwise when it is kept again",
        f"{box.name}.run_on",
        fix="name contents by their sha256",
    )


async def _left(
    box: Any,
    code: str,
    files: KeptFiles,
    expected: dict[str, str],
    printed: str | None = None,
    most_mb: int = 8,
) -> KeptFiles:
    """Run a program on files; what it left, which must be as expected: contents by path."""
    where = f"{box.name}.run_on"
    program = Program(code=code, files={"in": b"given"}, collect=("**",), limits=box.limits)
    fix = "keep what it leaves, a failing program too: plain files, without program.files, up to most_mb"
    returned = await box.call("run_on", program, files, most_mb, seconds=box.seconds, fix=fix)
    pair = isinstance(returned, tuple) and len(returned) == 2
    require(pair, f"returned {returned!r:.200}", where, fix="(Ran, coterie.KeptFiles)")
    ran, kept = returned
    check_ran(ran, where)
    if printed is not None:
        shown = "".join(sorted(ran.stdout.splitlines(keepends=True)))
        require(shown == printed, f"shows a program {shown!r}, not {printed!r}", where, fix="copy them")
    require(isinstance(kept, KeptFiles), f"returned {kept!r}", where, fix="(Ran, coterie.KeptFiles)")
    wanted = sorted(
        (path, hashlib.sha256(text.encode()).hexdigest(), len(text)) for path, text in expected.items()
    )
    require(sorted(kept.files) == wanted, f"keeps {sorted(kept.files)}, not {wanted}", where, fix=fix)
    for path, text in expected.items():
        at = f"{box.name}.kept"
        with guarded(at, "the path of a file with the content"):
            place = box.sandbox.kept(kept, path)
        require(isinstance(place, Path), f"returned {place!r:.200}", at, fix="a pathlib.Path")
        require(place.is_file(), f"gives {place}, which is no file", at, fix="a file with the content")
        content = place.read_text()
        require(content == text, f"gives {content!r} for {path}", at, fix="its content")
    return kept
