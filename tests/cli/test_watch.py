"""`coterie watch`: one frame, lines in a pipe, and drawn live on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from coterie.core.storage.atomic import locked
from tests.cli.forks import python
from tests.cli.support import coterie
from tests.viewing.runs import made, rows_of

WATCH = [sys.executable, "-c", "from coterie.cli.main import main; main()", "watch"]
WAIT = 60.0


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    made(folder / "seed-0", "seed=0", "schedule.steps=4")
    made(folder / "seed-1", "seed=1", "schedule.steps=4")
    return folder


def begun(folder, steps=3, rows=()):
    folder.mkdir()
    (folder / "config.yaml").write_text(json.dumps({"name": "n", "schedule": {"steps": steps}}))
    for row in rows:
        add(folder, **row)
    return folder


def add(folder, **row):
    with open(folder / "metrics.jsonl", "a") as handle:
        handle.write(json.dumps(row) + "\n")


class Terminal:
    """A process on a pseudo-terminal of 80 columns, and what it has written."""

    def __init__(self, *arguments, **environment):
        self.text = ""
        master, slave = pty.openpty()
        os.set_inheritable(slave, True)
        self.process = subprocess.Popen(
            [*WATCH, *map(str, arguments)], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "40", **environment},
            # What a shell starts in the background ignores Ctrl-C, and so would this process.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        os.close(slave)
        self.master = master

    def until(self, pattern):
        """Read until a pattern is there."""
        end = time.monotonic() + WAIT
        while not re.search(pattern, self.text):
            assert time.monotonic() < end, self.text
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.text += os.read(self.master, 65536).decode("utf-8", "replace")
                except OSError:  # the process has ended
                    break
        assert re.search(pattern, self.text), self.text

    def ended(self):
        """The exit code, once everything is read."""
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    data = os.read(self.master, 65536)
                except OSError:
                    break
                if not data:
                    break
                self.text += data.decode("utf-8", "replace")
            elif self.process.poll() is not None:
                break
        os.close(self.master)
        return self.process.wait(WAIT)


def test_one_frame_has_curves_roles_times_and_the_last_evaluation(trained, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    done = coterie("watch", trained / "seed-0", "--once")
    assert done.exit_code == 0, done.output
    last = rows_of(trained / "seed-0")[-1]
    assert "finished" in done.stdout and "step 4/4" in done.stdout and "\x1b" not in done.stdout
    evaluated = [row for row in rows_of(trained / "seed-0") if "eval/success" in row]
    assert re.search(rf"val 0 \[0, \S+\] at step {evaluated[-1]['step']}; best 0 at step 2", done.stdout)
    assert re.search(r"policy/shared/entropy +[▁▂▃▄▅▆▇█]{4} +4\.54", done.stdout)
    roles = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.strip()}
    assert roles["role"] == ["reward", "length", "empty", "faults", "equal", "missing"]
    for role in ("planner", "executor"):
        assert float(roles[role][1]) == pytest.approx(last[f"length/{role}"], abs=0.01)
        assert float(roles[role][4]) == pytest.approx(last[f"groups/{role}/zero_variance"], abs=0.01)
    assert re.search(r"time of the last 4 steps: \w+ \d+%", done.stdout)
    assert "long tail: " in done.stdout


@pytest.mark.parametrize("columns", ["60", "30"])
def test_a_frame_of_sixty_columns_is_not_broken(trained, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    for folders in ([trained / "seed-0"], [trained]):
        done = coterie("watch", *folders, "--once")
        assert done.exit_code == 0 and all(len(line) <= 60 for line in done.stdout.splitlines()), done.stdout


def test_several_runs_are_one_table(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    other = begun(tmp_path / "b", rows=[{"step": 1, "success": 0.25, "missing/share": 0.5}])
    done = coterie("watch", trained, other, "--once")
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["seed-0", "seed-1", "b"]
    assert lines[3].split()[1:3] == ["unseen", "1/3"] and "! b: 50% of the scores are missing" in done.stdout


def test_signals_and_hostile_names_are_shown_as_text(tmp_path):
    row = {"step": 1, "signal/truncated/a": 1.0, "reward/[red]\x1b[31m": 1.0, "signal/new\x07": 1.0}
    done = coterie("watch", begun(tmp_path / "run", rows=[row]), "--once")
    assert done.exit_code == 0, done.output
    assert "truncated (a): max_new_tokens cuts off 90% of the answers" in done.stdout
    assert r"[red]\x1b[31m" in done.stdout and "\x1b" not in done.stdout and "\x07" not in done.stdout


def test_what_is_no_run_is_refused_with_once(tmp_path):
    done = coterie("watch", tmp_path / "no", "--once")
    assert done.exit_code == 2 and "there is no such folder" in done.stderr
    assert coterie("watch", tmp_path, "--once").exit_code == 2


AS_NOBODY = """
import encodings.ascii, encodings.idna, json, os, sys, traceback
from click.testing import CliRunner
from coterie.cli.main import cli
folder, answers = sys.argv[1], []
words = ("watch RUN --once", "episodes RUN", "plot RUN -o RUN.png")
def called(words):
    done = CliRunner().invoke(cli, words.replace("RUN", folder).split(), prog_name="coterie")
    return [done.exit_code, done.stdout, done.stderr]
imported = [called(each) for each in words]  # root's interpreter may be closed to others
for mode in (0o755, 0o700):
    os.chmod(folder, mode)
    if not (child := os.fork()):
        os.setgid(65534)
        os.setuid(65534)
        print(json.dumps([called(each) for each in words]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.fixture
def open_folder():
    """A folder that every user can enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can become another user")
def test_the_run_of_another_user_is_shown_and_one_that_is_closed_is_told(trained, open_folder):
    folder = open_folder / "run"
    shutil.copytree(trained / "seed-0", folder)
    with locked(folder, wait=False):
        done = python(AS_NOBODY, str(folder), timeout=WAIT)
    opened, closed = map(json.loads, done.stdout.splitlines())
    assert [code for code, _, _ in opened] == [0, 0, 2], (opened, done.stderr)
    assert f"training (process {os.getpid()})" in opened[0][1]
    for code, stdout, stderr in closed:
        assert (code, stdout) == (2, "") and "can't be read" in stderr and "Permission denied" in stderr, (
            stderr
        )


def test_on_a_terminal_a_run_is_followed_from_before_it_begins_to_its_end(tmp_path):
    folder = tmp_path / "run"
    terminal = Terminal(folder, "--every", "0.1")
    terminal.until("waiting for the run to begin")
    begun(folder)
    with locked(folder, wait=False):
        terminal.until(rf"starting \(process {os.getpid()}\), no step yet")
        add(folder, step=1, **{"reward/planner": 0.125, "time/step": 2.0})
        terminal.until(r"step 1/3[^\n]*left")
        terminal.until(r"reward/planner[^\n]*0\.125")
        with open(folder / "metrics.jsonl", "a") as handle:
            handle.write('{"step": 2, "rew')  # half a row
        time.sleep(0.3)
        with open(folder / "metrics.jsonl", "a") as handle:
            handle.write('ard/planner": 0.25}\n')
        terminal.until(r"reward/planner  (\x1b\[\d+m)?▁█[^\n]*0\.25")
        add(folder, step=3)
    terminal.until("finished")
    assert terminal.ended() == 0 and "Traceback" not in terminal.text
    assert "damaged" not in terminal.text and "\x1b[?1049h" not in terminal.text  # no other screen


def test_ctrl_c_ends_it_without_a_traceback(tmp_path):
    with locked(begun(tmp_path / "run"), wait=False):
        terminal = Terminal(tmp_path / "run", "--every", "0.1")
        terminal.until("no step yet")
        os.killpg(terminal.process.pid, signal.SIGINT)
        code = terminal.ended()
    assert code == 130 and "Traceback" not in terminal.text
    assert terminal.text.count("\x1b[?25l") == terminal.text.count("\x1b[?25h")  # the cursor is back


@pytest.mark.parametrize("term", ["", "dumb"])
def test_without_a_known_terminal_there_are_lines_and_no_codes(tmp_path, term):
    folder = begun(tmp_path / "run", rows=[{"step": 1, "success": 0.5}])
    terminal = Terminal(folder, "--every", "0.1", TERM=term)
    terminal.until(r"run  step 1/3  success 0\.5")
    add(folder, step=2, **{"eval/success": 0.75})
    terminal.until(r"step 2/3  val 0\.75")
    add(folder, step=3)
    terminal.until("step 3/3 .*finished")
    assert terminal.ended() == 0 and "\x1b" not in terminal.text


def test_in_a_pipe_each_step_is_a_line(trained):
    done = subprocess.run([*WATCH, str(trained / "seed-0")], capture_output=True, text=True, timeout=WAIT)
    (line,) = done.stdout.splitlines()
    assert done.returncode == 0 and re.match(r"seed-0  step 4/4  best-of-K 0  .*finished", line), line
