"""A run while it lasts: its rows as they come, and whether its process still lives. Reads only.

A metrics file is read once, and then what was added to it. The lock of a run folder is looked up in the
system's list and never taken, so that looking at a run can't keep one from starting.
"""

from __future__ import annotations

import json
import math
import os
import stat
import statistics
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from coterie.api.rollout_lines import irregular
from coterie.api.rows import MOST_STEPS, interval_of, number_of, readable
from coterie.core.errors import RunFolderError, UserError
from coterie.core.storage.run_folder import RunFolder
from coterie.core.training.schedule import End
from coterie.recipes import read_yaml
from coterie.viewing.metric_names import described

LOCKS = Path("/proc/locks")
CHUNK = 1 << 22
"""Bytes that are read at once."""
TAIL = 200
"""Bytes before the place that was read up to: where they changed, the file was rewritten."""
PACE = 32
"""Latest steps that say how long one takes."""
PATIENCE = 30.0
"""Seconds without a row that are nothing unusual, however short steps are."""

State = Literal["waiting", "training", "slow", "finished", "stopped", "unseen"]


@cache
def is_kept(name: str) -> bool:
    """Whether the history of a metric is kept: of those that are shown as curves, and of times."""
    head = name.partition("/")[0]
    return described(name).first or head == "time" or name in ("tokens/total", "tokens/generated")


@dataclass(slots=True)
class MetricsFile:
    """The rows of a file that grows, that a resume rewrites, and whose last line may be half written."""

    path: Path
    steps: array[int] = field(default_factory=lambda: array("q"))
    columns: dict[str, array[float]] = field(default_factory=dict)
    """By name, a value a row; NaN where there is none. Those that `is_kept` names."""
    last: dict[str, Any] = field(default_factory=dict)
    """The newest row; what is no number that can be shown is None."""
    evaluated: dict[str, Any] = field(default_factory=dict)
    """The newest row with an evaluation, likewise."""
    damaged: int = 0
    """Lines that are no rows."""
    changed: float = 0.0
    """When the file was last written to, in seconds since 1970."""
    _place: int = 0
    _tail: bytes = b""
    _identity: tuple[int, int] = (0, 0)

    def read(self) -> bool:
        """Read what is new; returns whether anything is.

        Raises:
            OSError: the file is there and can't be read.
            RunFolderError: it is no regular file.
        """
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe without a writer would wait
        except FileNotFoundError:
            had = bool(self.steps)
            self._forget()
            return had
        with os.fdopen(handle, "rb", buffering=0) as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise irregular(self.path)
            self.changed = status.st_mtime
            fresh = (status.st_dev, status.st_ino) != self._identity or not self._continues(
                file, status.st_size
            )
            had = bool(self.steps)
            if fresh:
                self._forget()
                self._identity = (status.st_dev, status.st_ino)
            new = False
            file.seek(self._place)
            rest = b""
            while chunk := file.read(CHUNK):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._add(line)
                    new = True
                if lines:
                    read = sum(map(len, lines)) + len(lines)
                    self._place += read
                    self._tail = (self._tail + b"\n".join(lines) + b"\n")[-TAIL:]
            self.last, self.evaluated = _known(self.last), _known(self.evaluated)
            return new or (fresh and had)

    def _continues(self, file: Any, size: int) -> bool:
        """Whether the file still has what was read of it."""
        if size < self._place:
            return False
        file.seek(self._place - len(self._tail))
        return bool(file.read(len(self._tail)) == self._tail)

    def _forget(self) -> None:
        self.steps, self.columns, self.last, self.evaluated = array("q"), {}, {}, {}
        self.damaged, self._place, self._tail, self._identity = 0, 0, b"", (0, 0)

    def _add(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            row = json.loads(line)
            step = row["step"]
        except (ValueError, TypeError, KeyError):
            self.damaged += 1
            return
        if not isinstance(step, int) or not -MOST_STEPS < step < MOST_STEPS:
            self.damaged += 1
            return
        while self.steps and self.steps[-1] >= step:  # a resume wrote the steps again
            self.steps.pop()
            for column in self.columns.values():
                column.pop()
        count = len(self.steps)
        self.steps.append(step)
        for name, value in row.items():
            if is_kept(name):
                if name not in self.columns:
                    self.columns[name] = array("d", [math.nan]) * count
                self.columns[name].append(number_of(value))
        for column in self.columns.values():
            if len(column) == count:
                column.append(math.nan)
        self.last = row
        if row.get("eval/success") is not None:
            self.evaluated = row
        elif self.evaluated and self.evaluated["step"] >= step:
            self.evaluated = {}

    def latest(self, name: str, rows: int = PACE) -> list[float]:
        """The values of the latest rows that have one."""
        return [value for value in self.columns.get(name, ())[-rows:] if not math.isnan(value)]


def interval(value: Any) -> list[float] | None:
    """The bounds that a row has of a value; None: it has none."""
    bounds = interval_of(value)
    return None if any(map(math.isnan, bounds)) else [*bounds]


def _known(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row's numbers and intervals; None where it has something else."""
    known: dict[str, Any] = {}
    for name, value in row.items():
        if name.endswith("_ci95"):
            known[name] = interval(value)
        else:
            known[name] = None if math.isnan(number_of(value)) else value
    return known


@dataclass(slots=True)
class FollowedRun:
    """A run folder that is looked at again and again; it may not be there yet."""

    path: Path
    metrics: MetricsFile = field(init=False)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The tables of config.yaml; {}: there is none yet."""
    state: State = "waiting"
    pid: int | None = None
    """Of the process that trains it, where the system says so."""
    seen_alive: bool = False
    """Whether a process was seen training it."""
    _config: tuple[int, float] = (0, 0.0)

    def __post_init__(self) -> None:
        self.metrics = MetricsFile(RunFolder(self.path).metrics)

    def read(self, now: float | None = None) -> bool:
        """Look at the folder; returns whether rows, settings or state have changed.

        Raises:
            RunFolderError: it can't be read, or its config.yaml is damaged.
        """
        now = time.time() if now is None else now
        before = self.state, self.pid
        with readable(self.path):
            alive = trained_by(self.path)  # first: a process that is gone has written its last row
            changed = self._read_settings()
            changed |= self.metrics.read()
        self.seen_alive |= alive.lives is True
        self.state, self.pid = self._state_at(now, alive), alive.pid
        return changed or before != (self.state, self.pid)

    def _read_settings(self) -> bool:
        config = RunFolder(self.path).config
        try:
            status = os.stat(config)
        except (FileNotFoundError, NotADirectoryError):
            self.settings = {}
            return False
        if not stat.S_ISREG(status.st_mode):
            raise irregular(config)
        identity = (status.st_ino, status.st_mtime)
        if identity == self._config and self.settings:
            return False
        try:
            self.settings = read_yaml(config)
        except UserError as error:
            fix = "restore config.yaml from a copy"
            raise RunFolderError(f"{config} is damaged", why=error.what, fix=fix) from error
        self._config = identity
        return True

    def _state_at(self, now: float, alive: Alive) -> State:
        if not self.settings:
            return "waiting"
        late = now - self.since(now) > self.longest
        if alive.lives:
            return "slow" if late and self.step else "training"
        if self.end.reached(self.step, self.tokens):
            return "finished"
        if alive.lives is None or not (late or self.seen_alive):
            return "unseen"
        return "stopped"

    def since(self, now: float) -> float:
        """When the step in play began, as far as files say: the time of the newest row, or of the start."""
        return min(now, max(self.metrics.changed if self.step else 0.0, self._config[1]))

    @property
    def schedule(self) -> Mapping[str, Any]:
        return self.settings.get("schedule") or {}

    @property
    def end(self) -> End:
        """What ends it; an end in epochs is not known from the folder, unless there is another."""
        return End(self.schedule.get("steps"), self.schedule.get("tokens"))

    @property
    def step(self) -> int:
        return self.metrics.steps[-1] if self.metrics.steps else 0

    @property
    def tokens(self) -> int:
        return int(self.metrics.last.get("tokens/total") or 0)

    @property
    def steps(self) -> int | None:
        """The steps of the whole run, at the present pace where a budget ends it; None: not known."""
        end = self.end
        if end.steps is None and (end.tokens is None or not self.step):
            return None
        return end.expected(self.step, self.tokens)

    @property
    def typical(self) -> float:
        """The median of the seconds of the latest steps, without evaluations."""
        return statistics.median(self.metrics.latest("time/step") or (0.0,))

    @property
    def longest(self) -> float:
        """Seconds without a row that are nothing unusual: of several steps, and of an evaluation."""
        evaluations = self.metrics.latest("time/evaluate")
        return max(PATIENCE, 5 * (self.typical + max(evaluations, default=0.0)))

    def left(self, now: float) -> float | None:
        """Seconds until the run ends, by the pace of its latest steps; None: not known."""
        seconds, steps = self.metrics.latest("time/step"), self.steps
        if not seconds or steps is None or self.state not in ("training", "slow", "unseen"):
            return None
        pace = (math.fsum(seconds) + math.fsum(self.metrics.latest("time/evaluate"))) / len(seconds)
        in_play = min(now - self.since(now), pace)
        return max(0.0, pace * (steps - self.step) - in_play)


# ---------------------------------------------------------------------------------- whether a process lives


@dataclass(frozen=True, slots=True)
class Alive:
    """Whether a process of this machine trains a run; None: this system doesn't say."""

    lives: bool | None
    pid: int | None = None


def trained_by(folder: Path) -> Alive:
    """Look for the lock of a run folder, which ends with its process, in the system's list of locks."""
    try:
        status = os.stat(folder)
        locks = LOCKS.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return Alive(None if not LOCKS.exists() else False)
    except PermissionError:
        return Alive(None)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return _holder(locks.splitlines(), place, folder, status.st_ino)


def _holder(locks: Sequence[str], place: str, folder: Path, inode: int) -> Alive:
    """Who holds the lock of a place. Some file systems (btrfs, overlays) list another device than `stat`."""
    for line in locks:
        parts = line.split()
        if len(parts) < 6 or parts[1] != "FLOCK" or parts[3] != "WRITE":  # one that waits has an arrow
            continue
        pid = int(parts[4]) if parts[4].isdigit() else None
        if parts[5] == place:
            return Alive(True, pid)
        if parts[5].rpartition(":")[2] == str(inode) and pid is not None and _opened(pid, folder):
            return Alive(True, pid)
    return Alive(False)


def _opened(pid: int, folder: Path) -> bool:
    """Whether a process has a folder open, or won't say."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
        return any(os.path.realpath(f"/proc/{pid}/fd/{name}") == os.path.realpath(folder) for name in names)
    except OSError:
        return True
