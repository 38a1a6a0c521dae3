"""What is in the file: after a run, after a resume, and after a kill."""

import json
import sqlite3
from contextlib import closing

import coterie_sqlite
import pytest

import coterie
from coterie.testing import build, check_plugin, check_tracker


def select(folder, query):
    with closing(sqlite3.connect(folder / "run.sqlite")) as db:
        return db.execute(query).fetchall()


def steps(folder, table="metrics"):
    return [step for (step,) in select(folder, f"SELECT DISTINCT step FROM {table} ORDER BY step")]


def test_the_kit():
    check_tracker(build("tracker", "sqlite"), read=steps)
    check_tracker(build("tracker", {"type": "sqlite", "log_episodes": 2}), read=steps)
    check_plugin(coterie_sqlite)


def test_a_row_comes_back_as_it_was(tmp_path):
    tracker = build("tracker", {"type": "sqlite", "log_episodes": 1})
    tracker.open(tmp_path)
    row = {"loss": 0.1, "tokens": 3, "odd": float("nan"), "huge": float("inf"), "gone": None}
    tracker.track(1, {**row, "note": "'); DROP TABLE metrics; --", "ci": [0.1, None]})
    tracker.track_episodes(1, [{"step": 1, "role": "solver", "completion": "二\x1b", "tool_results": ["2"]}])
    tracker.close()
    stored = select(tmp_path, "SELECT name, value, text FROM metrics")
    rows = {name: (value, text) for name, value, text in stored}
    assert rows["loss"] == (0.1, None) and rows["tokens"] == (3.0, None)
    assert rows["odd"] == rows["huge"] == rows["gone"] == (None, None)
    assert rows["note"][1] == "'); DROP TABLE metrics; --" and json.loads(rows["ci"][1]) == [0.1, None]
    ((role, text, details),) = select(tmp_path, "SELECT role, completion, details FROM actions")
    assert (role, text, json.loads(details)) == ("solver", "二\x1b", {"tool_results": ["2"]})


def test_a_step_that_fails_half_way_leaves_the_one_before(tmp_path):
    tracker = build("tracker", "sqlite")
    tracker.open(tmp_path)
    tracker.track(1, {"loss": 1.0})
    with pytest.raises(sqlite3.Error):
        tracker.track(1, {"loss": 2.0, b"bytes": 3.0, ("no", "name"): 1.0})
    tracker.close()
    assert select(tmp_path, "SELECT value FROM metrics") == [(1.0,)]


def test_a_resumed_run_has_every_step_once_and_what_metrics_jsonl_has(tmp_path):
    run = tmp_path / "run"
    coterie.train("sqlite-smoke", overrides=["schedule.steps=3"], out=run)
    assert steps(run) == steps(run, "actions") == [1, 2, 3]
    with closing(sqlite3.connect(run / "run.sqlite")) as db:  # as of a run that was killed at step 5
        db.execute("INSERT INTO metrics VALUES (5, 'ghost', 1.0, NULL)")
        db.execute("INSERT INTO actions (step, action, task) VALUES (5, 100, 'ghost')")
        db.commit()
    coterie.train(resume=run, overrides=["schedule.steps=5"])
    assert steps(run) == steps(run, "actions") == [1, 2, 3, 4, 5]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    success = dict(select(run, "SELECT step, value FROM metrics WHERE name = 'success_committed'"))
    assert success == {line["step"]: line["success_committed"] for line in lines}
    episodes = "count(DISTINCT task || '/' || chain || '/' || episode)"
    assert select(run, f"SELECT {episodes} FROM actions GROUP BY step") == [(2,)] * 5
    assert not select(run, "SELECT * FROM metrics WHERE name = 'ghost'")
