"""The terminal has our messages and what plugins print; what libraries and processes print is in logs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from tests.cli.support import TABULAR, process

NOISE = (
    "print",
    "error",
    "warning",
    "record",
    "handled record",
    "descriptor",
    "process",
    "in a thread",
    "nobody waits",
)
"""How the library below prints."""
LIBRARY = """
    import asyncio, logging, os, subprocess, sys, threading, warnings

    handled = logging.getLogger("noisy.handled")
    handled.addHandler(logging.StreamHandler(sys.stdout))
    handled.propagate = False

    def thread():
        raise RuntimeError("noise: in a thread")

    async def lost():
        raise RuntimeError("noise: nobody waits")

    def speaks():
        print("noise: print")

    def prints():
        speaks()
        print("noise: error", file=sys.stderr)
        warnings.warn("noise: warning", FutureWarning)
        logging.getLogger("noisy").warning("noise: record")
        handled.warning("noise: handled record")
        os.write(2, b"noise: descriptor\\n")
        subprocess.run([sys.executable, "-c", "print('noise: process')"])
        failing = threading.Thread(target=thread)
        failing.start()
        failing.join()
        asyncio.get_running_loop().call_soon(asyncio.ensure_future, lost())
"""
CALLED_BY_US = """
    import noisy
    from coterie.api import train, evaluate

    def called(open_run):
        async def opened(*arguments):
            noisy.prints()
            await open_run(*arguments)
        return opened

    train.open_run, evaluate.open_run = called(train.open_run), called(evaluate.open_run)
"""
PLUGIN = """
    import logging, warnings
    import noisy
    from coterie import Plugin, hookimpl

    print("plugin: import")

    class Chatty(Plugin):
        scope, components, weights, policy_fault = "action", {"chat": "potential"}, {"chat": 0.1}, 0.0

        async def open(self):
            noisy.prints()

        async def score(self, view):
            print("plugin: score")
            warnings.warn("plugin: warning")
            logging.getLogger("chatty").warning("plugin: record")
            return {(view.role, "chat"): 0.0}

    @hookimpl
    def register_rewards(register):
        register("chatty", Chatty)
"""


@pytest.fixture
def library(tmp_path):
    """An installed library that prints in every way, on the path of processes."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "noisy.py").write_text(textwrap.dedent(LIBRARY))
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}


def run(*arguments, code=CALLED_BY_US, **environment):
    done = process(*arguments, code=code, **environment)
    assert done.returncode == 0, done
    return done


def noise(text):
    return [way for way in NOISE if f"noise: {way}\n" in text]


def test_what_a_library_prints_is_in_the_log_and_the_terminal_has_our_lines(tmp_path, library):
    folder = tmp_path / "run"
    settings = ("schedule.steps=1", "schedule.evaluate_every=0")
    done = run("run", TABULAR, *settings, "--out", folder, **library)
    log = (folder / "logs" / "libraries.log").read_text()
    assert noise(log) == list(NOISE) and "Traceback" in log, log
    lines = (done.stderr + done.stdout).splitlines()
    assert "noise" not in done.stderr + done.stdout and len(lines) == 4, lines
    done = run("run", "--resume", folder, "schedule.steps=2", "-v", **library)
    assert (folder / "logs" / "libraries.log").read_text() == log
    assert sorted(noise(done.stderr) + noise(done.stdout)) == sorted(NOISE)


WRAPPED = """
    import noisy
    from coterie.core.training import metrics_writer

    opened = metrics_writer.MetricsWriter.open

    def open(self, *arguments):
        noisy.HOW
        noisy.speaks()
        opened(self, *arguments)

    metrics_writer.MetricsWriter.open = open
"""
WRAPPERS = """
    class Tee:
        def __init__(self, stream):
            self.stream = stream

        def write(self, text):
            return self.stream.write(text)

        def __getattr__(self, name):
            return getattr(self.stream, name)

    def replace():
        sys.stdout, sys.stderr = Tee(sys.stdout), Tee(sys.stderr)

    def patched(stream):
        before = stream.write

        def write_with_callbacks(text):
            return before(text)

        stream.write = write_with_callbacks

    def patch():
        patched(sys.stdout)
        patched(sys.stderr)
"""


@pytest.mark.parametrize("how", ["replace()", "patch()"])
def test_a_library_that_wraps_the_streams_takes_none_of_the_runs_lines(tmp_path, library, how):
    file = tmp_path / "site-packages" / "noisy.py"
    file.write_text(textwrap.dedent(LIBRARY) + textwrap.dedent(WRAPPERS))
    settings = ("schedule.steps=2", "schedule.evaluate_every=0", "--out", tmp_path / "run")
    done = run("run", TABULAR, *settings, code=WRAPPED.replace("HOW", how), **library)
    kept = (tmp_path / "run" / "logs" / "libraries.log").read_text().splitlines()
    assert kept[1:] == ["noise: print"], (
        "what the library prints itself is in the log, and no line of the run"
    )
    assert "step 2/2" in done.stderr and "noise" not in done.stdout + done.stderr
    assert done.stdout.count("step 2/2") == 1 and "trained for" in done.stdout


def test_a_run_with_wandb_writes_its_lines_to_a_file(tmp_path):
    """W&B is imported by its tracker's thread, for which the end of the run waits."""
    pytest.importorskip("wandb")
    settings = ("schedule.steps=2", "schedule.evaluate_every=0", "trackers.wb={type: wandb, mode: offline}")
    file, script = tmp_path / "printed.txt", "from coterie.cli.main import main; main()"
    command = [sys.executable, "-c", script, "run", TABULAR, *settings, "--out", tmp_path / "run"]
    with file.open("w") as out:
        subprocess.run([*map(str, command)], check=True, stdout=out, stderr=out, timeout=120)
    lines = file.read_text().splitlines()
    assert any("step 2/2" in line and "trained for" in line for line in lines), lines
    kept = (tmp_path / "run" / "logs" / "libraries.log").read_text()
    assert "step " not in kept and (tmp_path / "run" / "wandb").is_dir()


def test_what_a_plugin_prints_is_shown_also_through_a_library(tmp_path, library):
    file, folder = tmp_path / "chatty.py", tmp_path / "run"
    file.write_text(textwrap.dedent(PLUGIN))
    settings = ("rewards.chatty.type=chatty", "schedule.steps=1", "schedule.evaluate_every=0")
    done = run("run", TABULAR, *settings, "-p", file, "--out", folder, code="", **library)
    shown = done.stdout + done.stderr
    for way in ("import", "score", "record"):
        assert f"plugin: {way}\n" in shown, shown
    assert "UserWarning: plugin: warning" in shown
    assert noise(shown) == ["print", "error", "record", "handled record"]
    kept = (folder / "logs" / "libraries.log").read_text()
    assert "plugin: " not in kept and "noise: descriptor\n" in kept


def test_an_evaluation_without_a_folder_keeps_no_log_unless_it_fails(tmp_path, library):
    for code, failed in (
        (CALLED_BY_US, False),
        (CALLED_BY_US.replace("await open_run", "raise KeyError"), True),
    ):
        done = process("eval", TABULAR, "--tasks", "2", "--json", code=code, **library, TMPDIR=str(tmp_path))
        logs = [log.read_text() for log in tmp_path.glob("coterie-logs-*/libraries.log")]
        assert (done.returncode != 0) is failed and len(logs) == failed, done
        assert "noise" not in done.stdout + done.stderr
    assert noise(logs[0])[: len(NOISE) - 1] == list(NOISE[:-1])
    assert "KeyError" in done.stderr and f"is in {tmp_path}/coterie-logs-" in done.stderr


def test_a_start_that_fails_leaves_no_log_and_what_was_held_back_is_shown(tmp_path, library):
    code = "import noisy, coterie.api.train as train\nload = train.load\n"
    code += "train.load = lambda *a, **k: (noisy.speaks(), load(*a, **k))[1]"
    done = process("run", "no_such_recipe", "--out", tmp_path / "run", code=code, **library)
    assert done.returncode == 2 and not (tmp_path / "run").exists()
    assert "no_such_recipe" in done.stderr and noise(done.stderr) == ["print"]


def test_a_log_that_cannot_be_written_costs_no_run_and_is_told_once(tmp_path, library):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "logs").write_text("in the way")
    done = run("run", TABULAR, "schedule.steps=1", "--out", folder, **library)
    assert done.stderr.count("no logs can be written") == 1 and f"{folder}/logs" in done.stderr
    assert set(noise(done.stderr) + noise(done.stdout)) == set(NOISE)
