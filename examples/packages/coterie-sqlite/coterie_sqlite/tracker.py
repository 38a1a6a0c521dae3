"""Tracker `sqlite`: the rows of a run and some of its episodes in one file that any SQL client reads."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from coterie import Plugin, PluginConfig

SCHEMA = """
CREATE TABLE IF NOT EXISTS metrics (step INTEGER, name TEXT, value REAL, text TEXT, PRIMARY KEY (step, name));
CREATE TABLE IF NOT EXISTS actions (
    step INTEGER, action INTEGER, task TEXT, epoch INTEGER, chain INTEGER, episode INTEGER, turn INTEGER,
    stage INTEGER, role TEXT, policy TEXT, branch INTEGER, prompt TEXT, completion TEXT, reward REAL,
    advantage REAL, success REAL, details TEXT, PRIMARY KEY (step, action)
);
"""
COLUMNS = (
    *("task", "epoch", "chain", "episode", "turn", "stage", "role", "policy", "branch"),
    *("prompt", "completion", "reward", "advantage", "success"),
)
"""Columns of `actions`; every other field of an action's row is in `details`, as JSON."""


class SqliteTracker(Plugin):
    """Two tables: `metrics` has a row for each number of a step, `actions` one for each action.

    A step's rows replace earlier ones of the same step, so that a resumed run leaves no step twice. Each call
    is one transaction: a kill leaves whole rows. A number that is missing, NaN or infinite is NULL.
    """

    class Config(PluginConfig):
        file: str = Field("run.sqlite", description="From the run folder; an absolute path is another place.")
        log_episodes: int = Field(0, ge=0, description="Episodes of each step that are stored.")

    config: Config
    _db: sqlite3.Connection | None = None

    @property
    def log_episodes(self) -> int:
        return self.config.log_episodes

    def open(self, folder: Path) -> None:
        """Make the file, or go on with it."""
        path = folder / self.config.file
        path.parent.mkdir(parents=True, exist_ok=True)
        # `close` may come from another thread than the other calls; calls never overlap.
        self._db = sqlite3.connect(path, timeout=10.0, check_same_thread=False)
        self._db.executescript(SCHEMA)

    def truncate(self, step: int) -> None:
        """Drop what a resumed run plays again."""
        with self._open as db:
            for table in ("metrics", "actions"):
                db.execute(f"DELETE FROM {table} WHERE step > ?", (step,))

    def track(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Store the row of a step: numbers in `value`, everything else in `text`."""
        rows = [(step, name, *_cell(value)) for name, value in metrics.items()]
        with self._open as db:
            db.execute("DELETE FROM metrics WHERE step = ?", (step,))
            db.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?)", rows)

    def track_episodes(self, step: int, actions: Sequence[Mapping[str, Any]]) -> None:
        """Store the episodes of a step, one row an action."""
        with self._open as db:
            db.execute("DELETE FROM actions WHERE step = ?", (step,))
            marks = ", ".join("?" * (len(COLUMNS) + 3))
            db.executemany(f"INSERT INTO actions VALUES ({marks})", _action_rows(step, actions))

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    @property
    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            raise RuntimeError("the tracker is not open")
        return self._db


def _action_rows(step: int, actions: Sequence[Mapping[str, Any]]) -> Iterable[tuple[Any, ...]]:
    for index, action in enumerate(actions):
        rest = {name: value for name, value in action.items() if name not in (*COLUMNS, "step")}
        details = json.dumps(rest, default=str)
        yield (step, index, *(action.get(name) for name in COLUMNS), details)


def _cell(value: Any) -> tuple[float | None, str | None]:
    """(number, text) of a metric. SQLite has NULL for NaN, and JSON none for infinities."""
    if value is None:
        return None, None
    if isinstance(value, bool | int | float):
        number = float(value)
        return (number if abs(number) < float("inf") else None), None
    return None, value if isinstance(value, str) else json.dumps(value, default=str)
