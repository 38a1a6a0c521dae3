"""The tracker: what every one promises, and what is in its file."""

import sqlite3


def steps(folder):
    database = sqlite3.connect(folder / "metrics.sqlite")
    rows = database.execute("SELECT DISTINCT step FROM metrics ORDER BY step").fetchall()
    database.close()
    return [step for (step,) in rows]


def test_it_keeps_the_promises_of_a_tracker(coterie_check):
    coterie_check("example_name", kind="tracker", read=steps)
