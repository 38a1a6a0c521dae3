"""Imports of plugins: how long they take, and what to do about one that fails."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from coterie.extras import EXTRA_OF

if TYPE_CHECKING:
    from coterie.discovery.manager import Report

SLOW = 5.0
"""Seconds after which an import is slow."""
log = logging.getLogger("coterie")


@contextmanager
def timed(report: Report, leave_out: str) -> Iterator[None]:
    """A context in which a plugin is imported. A slow import is told while it lasts, and in the report.

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
    begin = time.monotonic()
    try:
        yield
    finally:
        watchdog.cancel()
        report.seconds = time.monotonic() - begin
        if report.seconds >= SLOW:
            report.warnings.append(
                f"its import took {report.seconds:.0f} s\n  fix: in the package, register "
                '"module:attribute" in place of objects, so that the module is imported when a run chooses '
                f"it; without it: {leave_out}"
            )


def import_fix(error: BaseException, distribution: str) -> str:
    """What a user can do about a plugin whose import raised."""
    if isinstance(error, SystemExit):
        return "in the package, call sys.exit under `if __name__ == '__main__':` alone"
    root = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ImportError) and root == "coterie":
        return f"update the plugin: pip install -U {distribution}; docs/public_names.md lists coterie's names"
    if isinstance(error, ModuleNotFoundError) and root in EXTRA_OF:
        return f"pip install 'coterie[{EXTRA_OF[root]}]'"
    if isinstance(error, ModuleNotFoundError) and root:
        return f"pip install the package that has '{root}'; in {distribution}, add it to the dependencies"
    return f"correct the module, or remove the plugin: pip uninstall {distribution}"
