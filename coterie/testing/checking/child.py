"""The process in which `coterie check` tries components; what it sees, it writes as lines of JSON.

A component may print, call `sys.exit`, hang or end its process. The parent (`apart.py`) reads the lines,
names the component whose check never came to its end, and starts another process for the rest.

    {"event": "importing", "plugin": ["countdown", "my-package"]}  an installed plugin; null: all are there
    {"event": "loaded", "plugins": [...], "components": [...]}    what the target names
    {"event": "begin", "index": 3}, {"event": "promise", "text": ...}, {"event": "broken", "result": ...}
    {"event": "end", "result": ...}                               a component is done
    {"event": "hung", "stacks": [[[file, line, function], ...]]}  the time is over; the process ends
                                                                  with "method": `Countdown.step`, or ""
    {"event": "usage", "what": ..., "why": ..., "fix": ...}       the target names nothing
    {"event": "done"}                                             with "files": the modules to watch
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import importlib.metadata
import json
import logging
import os
import sys
import sysconfig
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

TIMED_OUT = 124
_LATE = 3.0
"""Seconds after which C code that keeps the interpreter's lock is ended too."""


class Events:
    """The file of events, and the watchdog of what is being done."""

    def __init__(self, folder: Path, timeout: float) -> None:
        self._file = (folder / "events.jsonl").open("a", encoding="utf-8", buffering=1)
        self._trace = (folder / "trace.txt").open("w", encoding="utf-8")
        self.timeout = timeout
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def write(self, event: str, **values: Any) -> None:
        """Write an event; the parent sees it at once."""
        with self._lock:
            self._file.write(json.dumps({"event": event, **values}, default=repr) + "\n")

    def arm(self, seconds: float | None = None) -> None:
        """End the process unless it is disarmed, or armed again, in time."""
        self.disarm()
        seconds = seconds or self.timeout
        self._timer = threading.Timer(seconds, self._hung)
        self._timer.daemon = True
        self._timer.start()
        faulthandler.dump_traceback_later(seconds + _LATE, exit=True, file=self._trace)

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        faulthandler.cancel_dump_traceback_later()

    def _hung(self) -> None:
        self.write("hung", stacks=stacks(), method=method_of_all())
        os._exit(TIMED_OUT)


def _stacks() -> list[list[Any]]:
    """The levels of every thread and of every task of asyncio, the innermost first."""
    from coterie.watchdog.stacks import of_task, of_thread

    tasks = [item for item in gc.get_objects() if isinstance(item, asyncio.Task) and not item.done()]
    return [*map(of_thread, sys._current_frames().values()), *map(of_task, tasks)]


def stacks() -> list[list[tuple[str, int, str]]]:
    """Where every thread and every task of asyncio is: file, line and function, the innermost first."""
    known = [[level.frame for level in stack] for stack in _stacks()]
    return [
        [(f.f_code.co_filename, f.f_lineno or 0, f.f_code.co_name) for f in frames if f is not None]
        for frames in known
    ]


def method_of_all() -> str:
    """The method of a component in which a thread or a task is: `Countdown.step`; empty: none is in one."""
    from coterie.watchdog.stacks import calls_in

    for stack in _stacks():
        for call in calls_in(stack, awaiting=False):
            return f"{type(call.plugin).__name__}.{call.frame.f_code.co_name}" if call.plugin else ""
    return ""


def watched_files() -> list[str]:
    """The files of modules that an author may edit: not Python's, Coterie's or other installed ones."""
    installed = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    ours = f"{Path(__file__).resolve().parents[2]}/"
    files = set()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not file.startswith((*installed, ours)):
            files.add(os.path.abspath(file))
    return sorted(files)


def check(events: Events, target: str, kind: str | None, skip: int) -> None:
    """Check what a target names, but for the first components, which are done."""
    from coterie.core.errors import UserError
    from coterie.testing.checking.component import SHRINKING, check_component
    from coterie.testing.checking.results import Checked
    from coterie.testing.checking.targets import find_target
    from coterie.testing.support.kept_state import left_behind, running
    from coterie.testing.support.promises import Promises
    from coterie.testing.support.time_limit import call_limit, limit

    events.arm()
    threads = running()
    _load(events)
    try:
        known = find_target(target, kind)
    except UserError as error:
        parts = {"what": error.what, "why": error.why, "fix": error.fix, "path": error.path}
        events.write("usage", **parts)
        return
    if text := left_behind(threads):
        for plugin in known.plugins:  # one of them, or another plugin that is installed
            plugin.notes.append(f"warning: while plugins were imported, one {text}")
    components = [(entry.kind, entry.name, entry.distribution) for entry in known.entries]
    events.write(
        "loaded",
        plugins=[result.table() for result in known.plugins],
        components=components,
        printed=_printed(),
    )

    def broken(result: Checked) -> None:
        events.write("broken", result=result.table())
        events.arm(SHRINKING + 5)

    for index, entry in enumerate(known.entries):
        if index < skip:
            continue
        events.write("begin", index=index, printed=_printed())
        events.arm()
        promises = Promises(on_change=lambda text: events.write("promise", text=text))
        with call_limit(min(limit(), events.timeout / 2)):  # a method is named, and the check goes on
            result = check_component(entry, promises=promises, on_broken=broken)
        events.disarm()
        events.write("end", result=result.table(), printed=_printed())
    events.write("done", files=[*watched_files(), *_layers(known.entries)])


def _load(events: Events) -> None:
    """Import the installed plugins, and say before each which one it is: it may hang, or end the process."""
    from coterie.discovery import GROUP, plugins

    modules: dict[str, tuple[str, str]] = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.dist is not None and entry.dist.name != "coterie":
            module = entry.value.partition(":")[0].strip()
            modules |= dict.fromkeys((module.partition(".")[0], module), (entry.name, entry.dist.name))

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> None:
            if name in modules:
                events.write("importing", plugin=modules[name])

    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
    try:
        plugins()
    finally:
        sys.meta_path.remove(Finder)  # type: ignore[arg-type]
    events.write("importing", plugin=None)


def _printed() -> int:
    """How much was printed on stdout so far, in bytes."""
    with suppress(Exception):  # a component may have put something else there
        sys.stdout.flush()
    return os.fstat(1).st_size


def _layers(entries: Any) -> list[str]:
    """The files of recipes, overlays and columns."""
    from coterie.core.plugins import FILES
    from coterie.recipes.layers import file_of

    files = []
    for entry in entries:
        if entry.kind in FILES and entry.distribution != "coterie":
            try:
                files.append(str(file_of(entry)))
            except Exception:  # told by its check
                continue
    return files


def main(request: str) -> None:
    """Do what the parent asks for: JSON of folder, target, kind, skip, timeout and sys.path."""
    asked = json.loads(request)
    sys.path[:] = [path for path in asked["path"] if path]
    sys.path.append(os.getcwd())  # last, so that no file of an author hides a library
    os.environ.pop("COTERIE_STRICT_PLUGINS", None)  # what is broken is reported
    logging.getLogger("coterie").setLevel(logging.ERROR)  # the report says what is wrong
    events = Events(Path(asked["folder"]), asked["timeout"])
    check(events, asked["target"], asked["kind"], asked["skip"])
    events.disarm()
    os._exit(0)  # threads that a component left behind keep nobody waiting
