"""Progress lines, and the numbers in them."""

from __future__ import annotations

import json
import sys
import threading
import time

import pytest

from coterie.cli import progress as module
from coterie.cli.output import columns, duration, interval, number, print_json, share, table
from coterie.cli.progress import Lines, Live, progress
from tests.cli.support import TABULAR, coterie


@pytest.fixture
def clock(monkeypatch):
    """Seconds that a test sets."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_a_line_says_step_success_pace_and_time_left(clock, capsys):
    with Lines("step") as shown:
        clock[0] += 20
        shown(12, 60, {"success": 0.41, "time/tokens_per_second": 8400.4})
    # A first call with step 12 is a resumed run's: its pace is not known yet.
    assert capsys.readouterr().err == "step 12/60  success .41  tokens/s 8,400\n"


def test_a_line_of_a_step_that_was_played_ahead_says_its_lag_and_who_waits(clock, capsys):
    row = {"time/step": 4.0, "time/rollouts": 1.0, "time/play": 6.0, "time/engine_waited": 0.4}
    ages = {"policy/a/staleness/max": 2.0, "policy/b/staleness/max": 1.0, "policy/a/staleness/mean": 1.5}
    with Lines("step") as shown:
        clock[0] += 20
        shown(3, 9, {**row, **ages})
    assert "step 3/9  lag 2  trainer waits .25  engine waits .10" in capsys.readouterr().err


def test_time_left_follows_the_pace(clock, capsys):
    with Lines("step") as shown:
        for step in (1, 2, 3):
            clock[0] += 2
            shown(step, 43, {})
    assert capsys.readouterr().err.splitlines()[-1] == "step 3/43  left 1m20s"


def test_a_resumed_run_counts_only_its_own_steps(clock, capsys):
    with Lines("step") as shown:
        for step in (51, 52):
            clock[0] += 10
            shown(step, 60, {})
    assert capsys.readouterr().err.splitlines()[-1] == "step 52/60  left 1m20s"


def test_the_start_up_is_no_step_time(clock, capsys):
    """Loading took ten minutes, each step ten seconds; a resumed run knows the pace of its first step too."""
    for first in (1, 51):
        with Lines("step") as shown:
            clock[0] += 600
            for step in (first, first + 1):
                clock[0] += 10
                shown(step, first + 7, {"time/step": 10.0})
        assert [line.split("left ")[1] for line in capsys.readouterr().err.splitlines()] == ["1m10s", "1m00s"]


def test_without_step_times_the_first_call_has_no_estimate(clock, capsys):
    with Lines("step") as shown:
        clock[0] += 600
        shown(1, 8, {})
    assert capsys.readouterr().err == "step 1/8\n"


def test_a_pipe_shows_the_folder_and_what_is_loaded_before_the_first_step(tmp_path):
    done = coterie("run", TABULAR, "schedule.steps=1", "--out", tmp_path / "a")
    lines = done.stderr.splitlines()
    assert lines[0] == f"writing to {tmp_path / 'a'}; loading 'shared' for the engine tabular"
    assert lines[1].startswith("loaded in ") and lines[1].endswith("s; step 1 plays 8 tasks")
    assert lines[2].startswith("step 1/1")
    assert done.stdout.startswith(str(tmp_path / "a"))
    assert "loading" not in coterie("eval", tmp_path / "a", "--tasks", "2").stderr


def test_quick_steps_do_not_flood_but_evaluations_and_the_end_are_told(clock, capsys):
    with Lines("step") as shown:
        for step in range(1, 101):
            clock[0] += 0.01
            shown(step, 100, {"eval/success": 0.5} if step == 50 else {})
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["1/100", "50/100", "100/100"]
    assert "val .50" in lines[1]


def test_the_best_of_several_is_not_called_success(clock, capsys):
    Lines("step")(1, 2, {"success_committed": 0.9})
    line = capsys.readouterr().err
    assert "best-of-K .90" in line and "success" not in line


def test_a_terminal_gets_a_bar_and_a_pipe_lines(monkeypatch):
    assert isinstance(progress(), Lines)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert isinstance(progress(), Live)


def test_the_bar_takes_the_same_calls(capsys):
    with Live("step") as shown:
        shown(1, 3, {"success": 0.5})
        shown(3, 3)


def test_a_long_step_on_a_cluster_says_what_its_processes_do(monkeypatch, capsys):
    monkeypatch.setattr(module, "LONG_SECONDS", 0.1)
    doing, calls, again = {"nodes": 3, "hosts": 1, "in play": 1200, "queued": 0}, [], threading.Event()

    def processes():
        calls.append(doing)
        if len(calls) > 1:  # the line of the first call has been printed
            again.set()
        return doing

    with Lines("step") as shown:
        shown(4, 9, {})
        shown.follow(processes)
        assert again.wait(60)
    lines = capsys.readouterr().err.splitlines()
    assert set(lines[1:]) == {"step 5/9 goes on: 3 nodes, 1 host, 1,200 in play, 0 queued"}
    time.sleep(0.3)
    assert not capsys.readouterr().err, "the display has ended"


def test_the_bar_shows_what_processes_do(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    with Live("step") as shown:
        shown.follow(lambda: {"hosts": 8, "queued": 40})
        shown(1, 3, {"success": 0.5})
    assert "8 hosts, 40 queued" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.414, ".41"), (0.999, "1.00"), (1.0, "1.00"), (0, ".00"), (-0.25, "-.25"), (None, "-")],
)
def test_shares(value, text):
    assert share(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.6, "8s"), (80, "1m20s"), (59.7, "1m00s"), (7500, "2h05m"), (-1, "0s")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_intervals_with_and_without_bounds():
    assert interval({"mean": 0.5, "ci95": [0.25, 1.0], "n": 4}) == ".500  [.250, 1.000]"
    assert interval({"mean": -0.0625, "ci95": [None, None], "n": 1}) == "-.062  [-, -]"


def test_json_is_strict(capsys):
    print_json({"a": [float("nan"), float("inf"), 1.5, "é"]})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"a": [None, None, 1.5, "é"]}


def test_numbers_and_tables():
    assert [number(value) for value in (12345, 0.123456, "x", True)] == ["12,345", "0.1235", "x", "True"]
    assert number(float("nan")) == number(None) == "-"
    assert table(("a", "b"), [("long", "x"), ("s", "")]).splitlines()[1:] == ["long  x", "s"]


def test_tables_keep_every_cell_whole_in_a_narrow_or_dumb_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TERM", "dumb")
    path = "runs/" + "x" * 300
    assert table(("run", "step"), [(path, "[1/2] :smile:")]).splitlines()[1] == f"{path}  [1/2] :smile:"
    assert columns([("a", "1"), ("long", "2")], indent=2) == "  a     1\n  long  2"
    assert columns([]) == ""
