"""The tracker: what every one promises, and what is in its file."""

import sqlite3

from coterie.testing import build, check_tracker


def steps(folder):
    database = sqlite3.connect(folder / "metrics.sqlite")
    rows = database.execute("SELECT DISTINCT step FROM metrics ORDER BY step").fetchall()
    database.close()
    return [step for (step,) in rows]


def test_it_keeps_the_promises_of_a_tracker():
    check_tracker(build("tracker", "example_name"), read=steps)
