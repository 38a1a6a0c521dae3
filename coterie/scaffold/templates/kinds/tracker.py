"""A tracker: where the metrics of every step go, beside the run's own metrics.jsonl.

An SQLite file in the run's folder, one row a step and metric: `SELECT step, value FROM metrics WHERE ...`.
"""

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from coterie import Plugin, PluginConfig, Register, hookimpl


class ExampleNameTracker(Plugin):
    """Writes the numbers of each step into an SQLite file."""

    class Config(PluginConfig):
        file: str = Field("metrics.sqlite", description="Its name in the run's folder.")

    config: Config
    database: sqlite3.Connection | None = None

    # No method is async, and none is called by two threads at once. No step waits for them: a tracker that
    # fails three times in a row receives nothing more, and the run goes on.
    def open(self, folder: Path) -> None:
        self.database = sqlite3.connect(folder / self.config.file, check_same_thread=False)
        self.database.execute("CREATE TABLE IF NOT EXISTS metrics (step INTEGER, name TEXT, value REAL)")

    # A resumed run goes back to its checkpoint, and writes the later steps again.
    def truncate(self, step: int) -> None:
        self.write("DELETE FROM metrics WHERE step > ?", [(step,)])

    def track(self, step: int, metrics: Mapping[str, Any]) -> None:
        rows = [(step, name, value) for name, value in metrics.items() if isinstance(value, (int, float))]
        self.write("INSERT INTO metrics VALUES (?, ?, ?)", rows)

    def write(self, command: str, rows: list[Any]) -> None:
        """Run a command for all rows, or for none."""
        if self.database is not None:
            with self.database:
                self.database.executemany(command, rows)

    def close(self) -> None:
        if self.database is not None:
            self.database.close()
        self.database = None


@hookimpl
def register_trackers(register: Register) -> None:
    register("example_name", ExampleNameTracker)
