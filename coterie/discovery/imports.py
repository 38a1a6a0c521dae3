"""Imports of plugins: what became of one, how long it took, and what to do about one that fails."""

from __future__ import annotations

import importlib.metadata
import logging
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from coterie.core.plugins.origin import raised_at
from coterie.extras import EXTRA_OF

SLOW = 5.0
"""Seconds after which an import is slow."""
log = logging.getLogger("coterie")


@dataclass(slots=True)
class Report:
    """What became of one entry point or file."""

    name: str
    distribution: str
    version: str
    ok: bool = True
    errors: list[str] = field(default_factory=list)
    provides: dict[str, list[str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    """What works and should change: a slow import, what is deprecated."""
    hooks: list[str] = field(default_factory=list)
    """The hooks that it implements."""
    module: str = ""
    """The value of the entry point; of a file its module's name."""
    seconds: float = 0.0
    """What its import took."""


@contextmanager
def timed(report: Report, leave_out: str) -> Iterator[None]:
    """A context in which a plugin is imported. A slow import is told while it lasts, and in the report.

    What it prints goes to stderr: stdout may be JSON that another program reads.

    Args:
        leave_out: how to go on without the plugin.
    """
    who = f"plugin '{report.name}' of {report.distribution}"
    text = (
        f"{who} has been importing for {SLOW:g} s, and nothing goes on before it is done\n  fix: {leave_out}"
    )
    watchdog = threading.Timer(SLOW, log.warning, [text])
    watchdog.daemon = True
    watchdog.start()
    begin, before = time.monotonic(), set(threading.enumerate())
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        watchdog.cancel()
        _note_threads(who, report, before, leave_out)
        report.seconds = time.monotonic() - begin
        if report.seconds >= SLOW:
            report.warnings.append(
                f"its import took {report.seconds:.0f} s\n  fix: in the package, register "
                '"module:attribute" in place of objects, so that the module is imported when a run chooses '
                f"it; without it: {leave_out}"
            )


def _note_threads(who: str, report: Report, before: set[threading.Thread], leave_out: str) -> None:
    """Tell the threads that an import started and for which Python waits before it ends a process."""
    for thread in threading.enumerate():
        if thread not in before and not thread.daemon:
            text = (
                f"its import started the thread '{thread.name}', and every command waits for the end of it\n"
                f"  fix: start it in `open` and end it in `close`, or with daemon=True; {leave_out}"
            )
            report.warnings.append(text)
            log.warning("%s: %s", who, text)


def raised(error: BaseException) -> str:
    """What was raised, and where in the plugin; the exception's own text may have a bug, too."""
    try:
        text = str(error)
    except Exception as second:
        text = f"(its text raised {type(second).__name__})"
    return f"{type(error).__name__}: {text}{raised_at(error)}"


def install_fix(module: str, distribution: str) -> str:
    """How to install what a distribution imports and lacks: by its extra, where it declares one."""
    try:
        required = list(map(Requirement, importlib.metadata.requires(distribution) or ()))
    except (importlib.metadata.PackageNotFoundError, ValueError):
        required = []
    for requirement in required:
        if canonicalize_name(requirement.name) == canonicalize_name(module):
            extra = re.search(r"extra == ['\"]([^'\"]+)", str(requirement.marker or ""))
            return f"pip install '{distribution}[{extra[1]}]'" if extra else f"pip install {requirement.name}"
    text = f"pip install the package that has '{module}'"
    return f"{text}; in {distribution}, add it to the dependencies" if _is_installed(distribution) else text


def removal(distribution: str) -> str:
    """How to go on without a plugin: as a package, as a file, or as a module that Python finds."""
    if distribution.endswith(".py"):
        return f"leave out -p {distribution}"
    installed = _is_installed(distribution)
    return f"pip uninstall {distribution}" if installed else "take it out of the configuration"


def _is_installed(distribution: str) -> bool:
    """Whether pip can name it: a file is no distribution, nor is a module on PYTHONPATH."""
    try:
        return bool(importlib.metadata.distribution(distribution))
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return False


def import_fix(error: BaseException, distribution: str) -> str:
    """What a user can do about a plugin whose import raised."""
    if isinstance(error, SystemExit):
        return "in the package, call sys.exit under `if __name__ == '__main__':` alone"
    root = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ImportError) and root == "coterie":
        names = "docs/public_names.md lists coterie's names"
        update = f"update the plugin: pip install -U {distribution}"
        return f"{update}; {names}" if _is_installed(distribution) else f"correct the module: {names}"
    if isinstance(error, ModuleNotFoundError) and root in EXTRA_OF:
        return f"pip install 'coterie[{EXTRA_OF[root]}]'"
    if isinstance(error, ModuleNotFoundError) and root:
        return install_fix(root, distribution)
    return f"correct the module, or remove the plugin: {removal(distribution)}"
