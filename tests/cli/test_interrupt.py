"""Ctrl-C and SIGTERM where something hangs: the command ends in time, with its children and a last line."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
import textwrap
import time
from pathlib import Path

import pytest

from coterie.cli import guard, interrupt
from tests.cli.support import TABULAR

SOON = "from coterie.cli import interrupt\ninterrupt.STEP_SECONDS = interrupt.CLOSE_SECONDS = .5\n"
SETTINGS = ("schedule.steps=100000", "schedule.record_every=0", "schedule.evaluate_every=0")
HANGS = {
    "C code that keeps the interpreter's lock": "sum(range(10**15))",
    "Python code that nothing ends": """
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass
    """,
    "a thread that the end of Python waits for": """
        threading.Thread(target=time.sleep, args=(3600,)).start()
        time.sleep(3600)
    """,
    "a closing": """
        async def close(*_):
            time.sleep(3600)
        Run.close = close
        time.sleep(3600)
    """,
}
"""What hangs -> the code of a step that does."""
FIRST, *OTHERS = HANGS


def started(
    folder: Path, hang: str = "time.sleep(3600)", soon: bool = True, method: str = "Run.finish"
) -> subprocess.Popen[str]:
    """A run whose first step hangs; its child process, which is stopped, writes its id into `child`.

    Args:
        method: what hangs: that of the run at the end of the step, or one in an episode.
    """
    code = f"""
import pathlib, signal, subprocess, sys, threading, time
from coterie.core.rollout.context import JobContext
from coterie.core.training.run import Run

def finish(*_):
    child = subprocess.Popen(["sleep", "3600"])
    child.send_signal(signal.SIGSTOP)
    (pathlib.Path(sys.argv[-1]) / "child").write_text(str(child.pid))
{textwrap.indent(textwrap.dedent(hang), "    ")}

{method} = finish
{SOON * soon}
from coterie.cli.main import main
main()
"""
    return subprocess.Popen(
        [sys.executable, "-c", code, "run", str(TABULAR), *SETTINGS, "--out", str(folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def written(path: Path, process: subprocess.Popen[str]) -> str:
    """The text of a file, once there is one."""
    end = time.monotonic() + 60
    while not (path.exists() and path.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)
    return path.read_text()


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def send(process: subprocess.Popen, number: signal.Signals) -> None:
    """Send a signal, and wait until the kernel has delivered it: two that wait at once are one."""
    process.send_signal(number)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            return
        pending = [line.split()[1] for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
        if not any(int(mask, 16) for mask in pending):
            return
        time.sleep(0.01)


def end_of(process: subprocess.Popen[str], child: int) -> str:
    """What a run says; it has ended, and its child."""
    try:
        _, messages = process.communicate(timeout=60)
        end = time.monotonic() + 30
        while not gone(child) and time.monotonic() < end:  # the guard outlives the run for a moment
            time.sleep(0.02)
        assert gone(child)
        return messages
    finally:
        process.kill()
        if not gone(child):
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("hang", [FIRST, *(pytest.param(hang, marks=pytest.mark.resume) for hang in OTHERS)])
def test_the_second_ctrl_c_ends_what_hangs_and_its_children(tmp_path, hang):
    folder = tmp_path / "run"
    process = started(folder, HANGS[hang])
    child = int(written(folder / "child", process))
    send(process, signal.SIGINT)
    time.sleep(0.2)
    assert process.poll() is None, "the first signal alone waits for the step"
    send(process, signal.SIGINT)
    messages = end_of(process, child)
    assert process.returncode in (130, -signal.SIGINT, -signal.SIGKILL)
    last = f"stopped; resume from step 0 with: coterie run --resume {folder}"
    assert messages.strip().splitlines()[-1] == last, messages
    assert messages.count("stopped;") == 1


@pytest.mark.resume
def test_the_second_ctrl_c_of_a_run_that_can_close_takes_no_time(tmp_path):
    """With its own five seconds; nothing has to be killed, and the exit code is 130. It hangs in an episode,
    whose interruption also ends the loop in which the run would be closed."""
    process = started(tmp_path / "run", soon=False, method="JobContext.step")
    child = int(written(tmp_path / "run" / "child", process))
    process.send_signal(signal.SIGINT)
    assert any(line.startswith("finishing the step; press") for line in iter(process.stderr.readline, ""))
    process.send_signal(signal.SIGINT)
    messages = end_of(process, child)
    assert process.returncode == 130 and "Traceback" not in messages
    assert messages.strip().splitlines()[-1].startswith("stopped; resume from step 0")


@pytest.mark.parametrize("hang", [pytest.param("time.sleep(3600)", marks=pytest.mark.resume), HANGS[FIRST]])
def test_sigterm_alone_ends_a_run_whose_step_hangs(tmp_path, hang):
    process = started(tmp_path / "run", hang)
    child = int(written(tmp_path / "run" / "child", process))
    process.terminate()
    messages = end_of(process, child)
    assert process.returncode in (130, -signal.SIGINT, -signal.SIGKILL)
    assert "stopped; resume from step 0 with: coterie run --resume" in messages


@pytest.mark.resume
def test_a_third_ctrl_c_ends_a_closing_that_hangs_at_once_and_the_last_line_is_said(tmp_path):
    process = started(tmp_path / "run", HANGS["a closing"], soon=False)
    child = int(written(tmp_path / "run" / "child", process))
    lines = iter(process.stderr.readline, "")
    for said in ("finishing the step", "stopping"):
        process.send_signal(signal.SIGINT)
        assert any(line.startswith(said) for line in lines)
    process.send_signal(signal.SIGINT)
    messages = end_of(process, child)
    assert process.returncode == -signal.SIGINT and "stopped; resume from step 0 with" in messages


@pytest.mark.resume
@pytest.mark.parametrize(("command", "module", "name"), [
    ("eval", "coterie.api.evaluate", "evaluate"),
    ("plan", "coterie.compose", "compose"),
])  # fmt: skip
def test_one_ctrl_c_ends_a_command_that_has_nothing_to_save(tmp_path, command, module, name):
    code = f"""
import pathlib, sys, time
import {module}

def stuck(*_, **__):
    pathlib.Path({str(tmp_path / "stuck")!r}).write_text("here")
    sum(range(10**15))

{module}.{name} = stuck
{SOON}
from coterie.cli.main import main
main()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, command, str(TABULAR)], stderr=subprocess.PIPE, text=True
    )
    written(tmp_path / "stuck", process)
    process.send_signal(signal.SIGINT)
    _, messages = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL and messages.strip() == "stopped"


def test_a_killed_command_leaves_the_terminal_as_it_was(tmp_path):
    """A progress bar hides the cursor, and a plugin may have set the terminal to raw."""
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    code = f"""
import tty, time
{SOON}
from coterie.cli.interrupt import interruptible
with interruptible():
    tty.setraw(2)
    print("raw", flush=True)
    sum(range(10**15))
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs)
    try:
        assert process.stdout.readline() == b"raw\n" and termios.tcgetattr(theirs) != before
        for _ in range(2):
            send(process, signal.SIGINT)
        process.wait(60)
        shown = b""
        while b"stopped" not in shown:
            shown += os.read(ours, 1000)
        assert termios.tcgetattr(theirs) == before and b"\x1b[?25h" in shown
    finally:
        process.kill()
        process.stdout.close()
        os.close(ours)
        os.close(theirs)


def test_a_line_that_comes_while_stderr_is_written_to_is_not_lost(monkeypatch, capfd):
    """As of a second Ctrl-C that comes with the line of the first: Python's buffer can't be re-entered."""

    def busy(*_, **__):
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

    monkeypatch.setattr(interrupt.click, "echo", busy)
    interrupt.say("stopping")
    assert capfd.readouterr().err == "stopping\n"


def test_the_guard_ends_the_children_that_the_command_named(monkeypatch):
    """The command may be gone before the guard looks: a third signal came at once."""
    ends, sent = os.pipe()
    os.set_blocking(ends, False)
    killed = []
    child = subprocess.Popen(["sleep", "60"])
    try:
        interruption = interrupt.Interruption()
        interruption.guarded_by(sent)
        interruption.tell_children()
        watching = guard.Guard(2**22 + 1, ends, 1.0, 1.0)  # no process has this id
        named = [tuple(each) for each in watching.state()["children"]]
        assert child.pid in [pid for pid, _ in named]
        monkeypatch.setattr(guard, "CLEAN", 0.05)
        monkeypatch.setattr(guard.os, "kill", lambda *arguments: killed.append(arguments))
        watching.kill_children()
        assert (child.pid, signal.SIGKILL) in killed and os.getpid() not in dict(killed)
    finally:
        monkeypatch.undo()
        child.kill()
        child.wait()
        os.close(ends)
        os.close(sent)


def test_a_command_without_a_signal_leaves_no_guard(tmp_path):
    code = "from coterie.cli.interrupt import interruptible\nwith interruptible(): input()\nprint(1)\ninput()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        end = time.monotonic() + 30
        while not (found := guard.children(process.pid)) and time.monotonic() < end:
            time.sleep(0.01)
        process.stdin.write("\n")
        process.stdin.flush()
        assert found and process.stdout.readline() == "1\n" and not guard.children(process.pid)
        process.stdin.write("\n")


def test_the_last_line_names_the_newest_checkpoint(tmp_path):
    assert guard.last_line("") == "stopped"
    assert "there is no checkpoint" in guard.last_line(str(tmp_path))
    for name in ("step-000004", "step-1000000", ".tmp-step-2000000", "best.json"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert "resume from step 1000000 with" in guard.last_line(str(tmp_path))
