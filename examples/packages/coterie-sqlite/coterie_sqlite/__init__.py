"""A tracker that writes a run's metrics and episodes to a SQLite file, and a recipe that uses it."""

from coterie import Register, hookimpl

coterie_api = ">=1.0,<2"


@hookimpl
def register_trackers(register: Register) -> None:
    register("sqlite", "coterie_sqlite.tracker:SqliteTracker")


@hookimpl
def register_recipes(register: Register) -> None:
    register("sqlite-smoke", "coterie_sqlite:smoke.yaml")
