"""A run that is looked at while it lasts: what is read again, and whether its process lives."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given, strategies as st

from coterie.core.errors import RunFolderError
from coterie.core.storage.atomic import locked, write_atomic
from coterie.viewing import follow
from coterie.viewing.follow import FollowedRun, MetricsFile, trained_by
from coterie.viewing.frame import buckets, facts, sparkline


def row(step, **more):
    return json.dumps({"step": step, "success": step / 10, "tokens/total": 10 * step, **more}) + "\n"


@pytest.fixture
def parsed(monkeypatch):
    """The lines that were parsed."""
    lines = []
    loads = json.loads
    monkeypatch.setattr(follow.json, "loads", lambda line: (lines.append(line), loads(line))[1])
    return lines


def run_in(folder, steps=4, **schedule):
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(json.dumps({"name": "n", "schedule": {"steps": steps, **schedule}}))
    return FollowedRun(folder)


def test_only_what_was_added_is_parsed(tmp_path, parsed):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(row(step) for step in range(1, 1001)))
    file = MetricsFile(path)
    assert file.read() and len(parsed) == 1000
    assert not file.read() and len(parsed) == 1000
    with open(path, "a") as handle:
        handle.write(row(1001))
    assert file.read() and len(parsed) == 1001
    assert len(file.steps) == len(file.columns["success"]) == 1001 and file.last["step"] == 1001


def test_a_row_that_is_half_written_is_read_when_it_is_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = row(2, **{"reward/planner": 0.5})
    path.write_text(row(1) + whole[:20])
    file = MetricsFile(path)
    assert file.read() and list(file.steps) == [1]
    with open(path, "a") as handle:
        handle.write(whole[20:-1])
        handle.flush()
        assert not file.read() and list(file.steps) == [1]  # complete, but for its newline
        handle.write("\n")
    assert file.read() and list(file.steps) == [1, 2] and not file.damaged
    assert math.isnan(file.columns["reward/planner"][0]) and file.columns["reward/planner"][1] == 0.5


def test_a_resume_that_rewrites_the_file_is_followed(tmp_path, parsed):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(row(step) for step in range(1, 6)))
    file = MetricsFile(path)
    file.read()
    write_atomic(path, row(1) + row(2))  # another file of that name, as a resume makes it
    assert file.read() and list(file.steps) == [1, 2]
    with open(path, "a") as handle:
        handle.write(row(3, success=0.9))
    assert file.read() and file.columns["success"].tolist() == [0.1, 0.2, 0.9]
    os.truncate(path, len(row(1)))  # the same file, shorter
    assert file.read() and list(file.steps) == [1]
    os.truncate(path, 0)
    with open(path, "a") as handle:  # the same file, other content of the same length and more
        handle.write("".join(row(step, success=0.7) for step in (1, 2, 3)))
    assert file.read() and file.columns["success"].tolist() == [0.7, 0.7, 0.7]
    path.unlink()
    assert file.read() and not file.steps and not file.last


def test_damaged_lines_are_counted_and_a_step_that_comes_again_replaces_the_first(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(row(1) + "{torn\n[1]\n\n" + '{"step": "x"}\n' + row(2) + row(3) + row(2, success=0.5))
    file = MetricsFile(path)
    file.read()
    assert file.damaged == 3 and list(file.steps) == [1, 2]
    assert file.columns["success"].tolist() == [0.1, 0.5] and file.last["success"] == 0.5


@given(st.lists(st.integers(0, 400), max_size=12), st.integers(0, 3))
def test_in_whatever_pieces_a_file_grows_its_rows_are_the_same(tmp_path_factory, cuts, damage):
    text = "".join(row(step, **({"reward/a": 1.0} if step % 2 else {})) for step in range(1, 7)).encode()
    path = tmp_path_factory.mktemp("grows") / "metrics.jsonl"
    file = MetricsFile(path)
    for end in [*sorted(cuts), len(text)]:
        path.write_bytes(text[:end]) if damage == 0 else _appended(path, text[:end])
        file.read()
    assert list(file.steps) == [1, 2, 3, 4, 5, 6] and not file.damaged
    assert {len(column) for column in file.columns.values()} == {6}


def _appended(path, text):
    with open(path, "ab") as handle:
        handle.write(text[path.stat().st_size :])


# ------------------------------------------------------------------------------------------- the process


def test_a_run_that_has_not_begun_is_waited_for(tmp_path):
    run = FollowedRun(tmp_path / "later")
    run.read()
    assert run.state == "waiting" and run.step == 0
    run_in(tmp_path / "later")
    assert run.read() and run.state == "unseen"


@pytest.mark.skipif(not follow.LOCKS.exists(), reason="the system lists no locks")
def test_a_dead_process_is_told_from_a_slow_step_and_nothing_is_locked(tmp_path):
    run = run_in(tmp_path / "run")
    (run.path / "metrics.jsonl").write_text(row(1, **{"time/step": 2.0}))
    code = (
        "import sys, time; from pathlib import Path; from coterie.core.storage.atomic import locked\n"
        "with locked(Path(sys.argv[1]), wait=False) as acquired: print(acquired, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, run.path], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "True\n"
        run.read()
        assert run.state == "training" and run.pid == process.pid and run.seen_alive
        run.read(now=time.time() + 1000)
        assert run.state == "slow"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    process.stdout.close()
    run.read()
    assert run.state == "stopped" and run.pid is None
    other = FollowedRun(run.path)
    other.read()
    assert other.state == "unseen"  # somebody who comes now: it may be a process of another machine
    other.read(now=time.time() + 1000)
    assert other.state == "stopped"
    before = sorted((path.name, path.stat().st_mtime_ns) for path in run.path.iterdir())
    with locked(run.path, wait=False) as acquired:
        assert acquired and run.read() and run.state == "training" and run.pid == os.getpid()
    assert before == sorted((path.name, path.stat().st_mtime_ns) for path in run.path.iterdir())


def test_where_the_system_lists_no_locks_nothing_is_claimed(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "LOCKS", tmp_path / "none")
    run = run_in(tmp_path / "run")
    run.read(now=time.time() + 1e6)
    assert trained_by(run.path).lives is None and run.state == "unseen"


def test_the_lock_of_another_file_system_counts_by_its_process(tmp_path, monkeypatch):
    inode = tmp_path.stat().st_ino
    (tmp_path / "locks").write_text(f"1: FLOCK  ADVISORY  WRITE {os.getpid()} 00:99:{inode} 0 EOF\n")
    monkeypatch.setattr(follow, "LOCKS", tmp_path / "locks")
    assert trained_by(tmp_path).lives is False  # this process has another folder of that number open
    handle = os.open(tmp_path, os.O_RDONLY)
    assert trained_by(tmp_path) == follow.Alive(True, os.getpid())
    os.close(handle)


def test_a_finished_run_is_finished_and_a_budget_decides_too(tmp_path):
    run = run_in(tmp_path / "a", steps=2)
    (run.path / "metrics.jsonl").write_text(row(1) + row(2))
    run.read()
    assert run.state == "finished" and run.left(time.time()) is None
    run = run_in(tmp_path / "b", steps=100, tokens=40)
    (run.path / "metrics.jsonl").write_text(row(1) + row(2, **{"time/step": 4.0}))
    run.read()
    assert run.steps == 4 and run.state == "unseen"  # 10 tokens a step
    assert run.left(run.metrics.changed) == pytest.approx(8.0)
    assert run.left(run.metrics.changed + 3) == pytest.approx(5.0)


def test_what_cannot_be_read_is_told(tmp_path, monkeypatch):
    run = run_in(tmp_path / "run")

    def refused(path, *more):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(follow.os, "open", refused)
    with pytest.raises(RunFolderError, match="can't be read") as error:
        run.read()
    assert "Permission denied" in error.value.why and "owner" in error.value.fix
    monkeypatch.undo()
    run = FollowedRun(tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text("a: [")
    with pytest.raises(RunFolderError, match="is damaged"):
        run.read()


# ------------------------------------------------------------------------------------------- in one line


def test_a_sparkline_has_a_character_for_each_value_and_gaps_are_spaces():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.0, math.nan, 1.0], 8) == "▁ █"
    assert sparkline([0.5, 0.5], 8) == "▁▁" and sparkline([0.5], 8, low=0, high=1) == "▅"
    assert sparkline([], 8) == "" and sparkline([math.nan], 8) == " "
    assert sparkline([0, 1], 8, ascii=True) == "_#"


@given(st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan)), max_size=200), st.integers(1, 60))
def test_a_long_curve_is_shown_whole(values, width):
    means = buckets(values, width)
    assert len(means) == min(len(values), width) == len(sparkline(values, width))
    there = [value for value in values if not math.isnan(value)]
    shown = [mean for mean in means if not math.isnan(mean)]
    assert bool(there) == bool(shown)
    if there:
        assert min(there) - 1e-3 <= min(shown) <= max(shown) <= max(there) + 1e-3


def test_an_evaluation_makes_no_step_slow_and_is_no_step(tmp_path):
    run = run_in(tmp_path / "run", steps=9)
    times = {"time/step": 2.0, "time/evaluate": 20.0}
    (run.path / "metrics.jsonl").write_text(row(1, **{"time/step": 4.0}) + row(2, **times) + row(3, **times))
    run.read()
    assert run.typical == 2.0 and run.longest == 5 * 22.0
    with locked(run.path, wait=False):
        run.read(now=run.metrics.changed + 100)
        assert run.state == "training" or not follow.LOCKS.exists()
        run.read(now=run.metrics.changed + 120)
        assert run.state == "slow" or not follow.LOCKS.exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(name, tmp_path):
    run = run_in(tmp_path / "run")
    (run.path / name).unlink(missing_ok=True)
    os.mkfifo(run.path / name)
    with pytest.raises(RunFolderError, match=f"{name} is no regular file"):
        run.read()


def test_the_pace_is_that_of_the_last_ten_steps(tmp_path):
    run = run_in(tmp_path / "run", steps=99)
    seconds = [9.0] * 20 + [2.0] * 9 + [50.0]
    rates = [10.0] * 20 + [40.0] * 9 + [1.0]
    (run.path / "metrics.jsonl").write_text(
        "".join(
            row(step, **{"time/step": of, "time/tokens_per_second": rate})
            for step, (of, rate) in enumerate(zip(seconds, rates, strict=True), 1)
        )
    )
    run.read()
    assert facts(run, time.time())[:2] == [("tokens/s", "40"), ("a step", "2s")]
