"""`check_apart`: components are checked in another process, so that none hinders the others."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coterie.core.errors import UserError
from coterie.testing.checking.hangs import innermost, stacks_of
from coterie.testing.checking.results import Broken, Checked

TIMEOUT = 60.0
"""Seconds in which a component's check must end."""
_SPARE = 15.0
"""Seconds beyond, after which the process is killed from here."""
_START = (
    "import sys, json; request = sys.argv[1]\n"
    "sys.path[:] = [path for path in json.loads(request)['path'] if path]\n"
    "from coterie.testing.checking.child import main; main(request)"
)
_BEGIN = b'{"event": '
_LOADING = "it is imported, and its hooks are known"

OnResult = Callable[[Checked, int], None]


@dataclass(slots=True)
class CheckedTarget:
    """What became of a target."""

    results: list[Checked] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    """Files whose change asks for another check; empty where it could not be imported."""

    @property
    def ok(self) -> bool:
        return all(result.ok for result in self.results)


def check_apart(
    target: str,
    kind: str | None = None,
    *,
    timeout: float = TIMEOUT,
    on_result: OnResult = lambda result, count: None,
) -> CheckedTarget:
    """Check what a target names, in a process of its own.

    Args:
        timeout: seconds for each component; after that it is told where it was, and the rest goes on.
        on_result: called with each component when it is done, and the number of all.

    Raises:
        UserError: the target names nothing.
    """
    outcome, skip = CheckedTarget(), 0
    while True:
        run = _Child(target, kind, timeout, skip)
        try:
            for result in run.results(first=skip == 0):
                outcome.results.append(result)
                on_result(result, len(run.components))
        finally:
            run.end()
        outcome.files = run.files or outcome.files
        if run.done or run.index < 0 or run.index + 1 >= len(run.components):
            return outcome
        skip = run.index + 1


class _Child:
    """One process, and what it wrote."""

    def __init__(self, target: str, kind: str | None, timeout: float, skip: int) -> None:
        self._temporary = TemporaryDirectory(prefix="coterie-check-", ignore_cleanup_errors=True)
        self._folder, self._target, self._timeout = Path(self._temporary.name), target, timeout
        self.components: list[Sequence[str]] = []
        self.index, self.done, self.files = -1, False, list[str]()
        self._promise, self._begin, self._printed = _LOADING, time.monotonic(), 0
        self._begun: list[str] = []
        self._partly: Checked | None = None
        self._importing: Sequence[str] | None = None
        self._stacks: list[Any] = []
        self._method = ""
        self._open = False
        request = {
            "folder": str(self._folder), "target": target, "kind": kind, "skip": skip, "timeout": timeout,
            "path": sys.path,
        }  # fmt: skip
        self._out, self._err = (self._folder / name for name in ("stdout.txt", "stderr.txt"))
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(request)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip

    def end(self) -> None:
        """End the process with all that it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._temporary.cleanup()

    def results(self, first: bool) -> Iterator[Checked]:
        """The results, as they come; the last one may be of a component that ended the process.

        Args:
            first: whether the plugins of the target were not told yet.

        Raises:
            UserError: the target names nothing.
        """
        for event in self._events():
            match event["event"]:
                case "usage":
                    raise UserError(event["what"], why=event["why"], fix=event["fix"], path=event["path"])
                case "importing":
                    self._importing = event["plugin"]
                case "loaded":
                    self.components = event["components"]
                    plugins = [Checked.of(table) for table in event["plugins"] if first]
                    of_import = "while plugins were imported, one"
                    yield from (self._with_output(part, event["printed"], of_import) for part in plugins)
                case "begin":
                    self.index, self._open, self._partly = event["index"], True, None
                    self._begin, self._promise, self._begun = time.monotonic(), "its check begins", []
                    self._printed = event["printed"]
                case "promise":
                    self._promise = event["text"]
                    self._begun.append(self._promise)
                case "broken":
                    self._partly = Checked.of(event["result"])
                case "hung":
                    self._stacks, self._method = event["stacks"], event["method"]
                case "end":
                    self._open = False
                    yield self._with_output(Checked.of(event["result"]), event["printed"])
                case "done":
                    self.done, self.files = True, event["files"]
        if not self.done:
            yield self._ended()

    def _events(self) -> Iterator[Mapping[str, Any]]:
        """The events until the process has ended; it is killed where it should have ended itself."""
        path, at, rest = self._folder / "events.jsonl", 0, b""
        while True:
            ended = self._process.poll() is not None
            if path.exists():
                with path.open("rb") as file:
                    file.seek(at)
                    part = file.read()
                at += len(part)
                *lines, rest = (rest + part).split(b"\n")
                yield from filter(None, map(event_of, lines))
            if ended:
                return
            if time.monotonic() > self._begin + self._timeout + _SPARE:
                self._process.kill()
            time.sleep(0.02)

    def _with_output(self, result: Checked, printed: int, who: str = "it") -> Checked:
        """The result, with a note of what was printed on stdout meanwhile."""
        if printed > self._printed:
            with self._out.open("rb") as file:
                file.seek(self._printed)
                text = file.read(printed - self._printed).decode(errors="replace")
            lines = text.splitlines()
            more = f" and {len(lines) - 1} more lines" if len(lines) > 1 else ""
            result.notes.append(f"{who} printed {lines[0][:80]!r}{more} on stdout")
        return result

    def _ended(self) -> Checked:
        """The component that ended the process, or hung."""
        if self._partly is not None:  # a smaller example ended it
            return self._partly
        if self._open:
            kind, name, distribution = self.components[self.index]
        else:
            kind, (name, distribution) = "plugin", self._importing or (self._target, self._target)
        other = self._importing and self._target not in self._importing
        without = "; COTERIE_PLUGINS=NAME,... imports only the plugins that it names" if other else ""
        result = Checked(kind, name, distribution, seconds=time.monotonic() - self._begin)
        result.kept = [text for text in dict.fromkeys(self._begun) if text != self._promise]
        trace = self._folder / "trace.txt"
        text = trace.read_text(encoding="utf-8", errors="replace") if trace.exists() else ""
        stacks = self._stacks or stacks_of(text)
        if stacks or (self._process.returncode == -signal.SIGKILL and result.seconds > self._timeout):
            what = f"{self._method}: has not returned after" if self._method else "has not ended after"
            what += f" {self._timeout:g} s"
            if not self._open:
                what = f"a plugin is still being imported after {self._timeout:g} s"
            fix = "bound what it waits for; --timeout gives a check that works more time"
            result.broken.append(Broken(self._promise, what, innermost(stacks), fix + without))
            return result
        code = self._process.returncode
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        last = _last_lines(self._err.read_text(encoding="utf-8", errors="replace"))
        what = f"ended its process: {how}{f'; the last lines of stderr: {last}' if last else ''}"
        fix = "raise an exception: os._exit and signals end a run without a word"
        result.broken.append(Broken(self._promise, what, "", fix + without))
        return result


def event_of(line: bytes) -> Mapping[str, Any] | None:
    """The event that a check's process wrote as this line; None of what a component wrote there."""
    start = line.find(_BEGIN)
    try:
        event = json.loads(line[max(start, 0) :])
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _last_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub(r"\s+", " ", " | ".join(lines[-3:]))[:400]
