"""Run folders on full disks, and after starts that fail."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import coterie
from coterie.api.checkpoints import CheckpointStore
from coterie.api.rows import read_metrics
from tests.cli.support import coterie as coterie_command, process
from tests.test_resume import MATRIX, same

posix = pytest.mark.skipif(sys.platform == "win32", reason="file limits and signals of POSIX")

FULL = '''
import resource
from coterie.core.storage.jsonl import MetricsLog


def fill():
    """No byte can be written to any file: EFBIG, as ENOSPC on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def fill_after(step):
    """Fill the disk once the row of a step is written; of step 0, once the file of the rows is opened.

    A tracker couldn't: it has a thread of its own, and the run goes on meanwhile.
    """
    name = "append" if step else "__init__"
    method = getattr(MetricsLog, name)

    def then_fill(log, first, *rest):
        method(log, first, *rest)
        if step in (0, first):
            fill()

    setattr(MetricsLog, name, then_fill)
'''
UNREACHED = """
import asyncio
from coterie import Plugin


class Source(Plugin):
    scope, components, weights, policy_fault = "action", {"judged": "increment"}, {}, 0.0

    async def open(self):
        await asyncio.open_connection("127.0.0.1", 9)  # the discard port: nobody listens

    async def score(self, view):
        return {(view.role, "judged"): 1.0}
"""
EVERY = ("schedule.steps=5", "schedule.checkpoint_every=2")
"""The checkpoints of the matrix game's run: steps 0, 2, 4 and 5."""


@pytest.fixture
def command(tmp_path):
    """Run the command in a process of its own, its plugin module on the path."""
    (tmp_path / "full_disk.py").write_text(FULL)
    (tmp_path / "unreached.py").write_text(UNREACHED)

    def run(*arguments, code=""):
        path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
        done = process(*arguments, code=code, PYTHONPATH=path)
        assert "Traceback" not in done.stderr and "bug" not in done.stderr, done.stderr
        return done

    return run


def full_after(step):
    return f"import full_disk; full_disk.fill_after({step})"


@posix
@pytest.mark.parametrize(("step", "settings", "what", "saved"), [
    (0, (), "the checkpoint of step 0", None),
    (1, (), "the row of step 2", 0),
    *(pytest.param(*case, marks=pytest.mark.resume) for case in (
        (2, (), "the checkpoint of step 2", 0),
        (3, (), "the row of step 4", 2),
        (2, ("schedule.record_every=3",), "the checkpoint of step 2", 0),
    )),
    (4, (), "the checkpoint of step 4", 2),
    *(pytest.param(*case, marks=pytest.mark.long) for case in (
        (3, ("schedule.record_every=2",), "rollouts/step-000004.jsonl.gz", 2),
        (3, ("schedule.evaluate_every=4",), "eval/step-000004.json", 2),
    )),
])  # fmt: skip
def test_a_full_disk_is_told_with_the_last_checkpoint_and_the_run_resumes(
    tmp_path, command, step, settings, what, saved
):
    folder = tmp_path / "run"
    settings = ("schedule.evaluate_every=0", "schedule.record_every=0", *EVERY, *settings)
    done = command("run", MATRIX, *settings, "--out", folder, code=full_after(step))
    assert done.returncode == 2 and f"{what}" in done.stderr, done.stderr
    assert "can't be written\n  why: [Errno 27] File too large" in done.stderr
    if saved is None:
        assert "start again: no step was saved" in done.stderr and not folder.exists()
        return
    assert f"coterie run --resume {folder}" in done.stderr
    assert f"the checkpoint of step {saved} is intact" in done.stderr
    assert not list(folder.rglob(".tmp-*")), "partial files are removed"
    assert CheckpointStore(folder / "checkpoints", keep=9).latest().step == saved
    # The disk has room again: the rest is as if nothing had happened.
    again = coterie_command("run", "--resume", folder)
    assert again.exit_code == 0, again.stderr
    assert "lacks the rows" not in again.stderr
    whole = coterie.train(MATRIX, overrides=settings, out=tmp_path / "whole")
    assert whole.finished
    same(folder, tmp_path / "whole")


@posix
def test_a_full_disk_while_a_run_resumes_leaves_it_as_it_was(tmp_path, command):
    folder = tmp_path / "run"
    coterie.train(MATRIX, overrides=[*EVERY, "schedule.evaluate_every=0"], out=folder)
    (folder / "checkpoints" / "step-000005").rename(tmp_path / "gone")  # as if killed in step 5
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    code = "import full_disk; full_disk.fill()"
    done = command("run", "--resume", folder, code=code)
    refused = f"what the resume discards, in {folder / 'discarded'}, can't be written"
    assert done.returncode == 2 and refused in done.stderr, done.stderr
    assert "the checkpoint of step 4 is intact" in done.stderr
    longer = command("run", "--resume", folder, "schedule.steps=9", code=code)
    assert longer.returncode == 2 and refused in longer.stderr
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert coterie.train(resume=folder).finished
    assert [row["step"] for row in read_metrics(folder / "metrics.jsonl")] == [1, 2, 3, 4, 5]


@posix
def test_a_new_run_on_a_full_disk_leaves_no_folder(tmp_path, command):
    done = command("run", MATRIX, "--out", tmp_path / "run", code="import full_disk; full_disk.fill()")
    assert done.returncode == 2 and "can't be written" in done.stderr and "fix: free space" in done.stderr
    assert not (tmp_path / "run").exists()


@posix
@pytest.mark.resume
def test_a_full_disk_under_safetensors_is_told_as_any_other(tmp_path, command):
    """They raise errors of their own, which are no OSError."""
    pytest.importorskip("torch")
    settings = ("schedule.steps=2", "schedule.checkpoint_every=1", "schedule.evaluate_every=0")
    done = command(
        "run", "plan_path", "--scale", "smoke", *settings, "--out", tmp_path / "run", code=full_after(1)
    )
    assert done.returncode == 2 and "the checkpoint of step 1" in done.stderr, done.stderr
    assert "File too large" in done.stderr and "the checkpoint of step 0 is intact" in done.stderr
    assert not list((tmp_path / "run").rglob(".tmp-*"))


# ------------------------------------------------------------------------------------------ starts that fail


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def fails(monkeypatch, error=None, step=None):
    """Make the trainer of the matrix game fail: while it opens, or in the update of a step."""
    from coterie.backends.trainers.tabular import TabularTrainer

    async def broken(self, *arguments):
        raise error or MemoryError("no room for the model")

    monkeypatch.setattr(TabularTrainer, "open" if step is None else "update", broken)


@pytest.mark.parametrize("error", [MemoryError("no room"), KeyboardInterrupt(), ConnectionError("refused")])
def test_a_start_that_fails_leaves_nothing_and_its_folder_can_be_used(tmp_path, monkeypatch, error):
    folder = tmp_path / "deep" / "run"
    with monkeypatch.context() as patch, pytest.raises(BaseException, match=str(error) or None):
        fails(patch, error)
        coterie.train(MATRIX, out=folder)
    assert not folder.exists()
    assert coterie.train(MATRIX, out=folder).finished


def test_a_start_that_fails_removes_nothing_that_it_did_not_make(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "eval").mkdir()
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "mine").touch()
    before = files(tmp_path)
    for error in (MemoryError("no room"), ValueError("a bug")):
        with monkeypatch.context() as patch, pytest.raises(type(error)):
            fails(patch, error)
            coterie.train(MATRIX, out=tmp_path)
        assert files(tmp_path) == before
    (tmp_path / "empty").mkdir()
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        fails(patch)
        coterie.train(MATRIX, out=tmp_path / "empty")
    assert files(tmp_path / "empty") == [] and (tmp_path / "empty").is_dir()
    assert coterie.train(MATRIX, out=tmp_path).finished and (tmp_path / "notes.txt").read_text() == "mine"


def test_a_run_that_fails_after_its_first_checkpoint_stays(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        fails(patch, step=1)
        coterie.train(MATRIX, out=tmp_path / "run")
    assert CheckpointStore(tmp_path / "run" / "checkpoints", keep=9).steps() == [0]
    with pytest.raises(coterie.RunFolderError, match="holds a run already"):
        coterie.train(MATRIX, out=tmp_path / "run")
    assert coterie.train(resume=tmp_path / "run").finished


def test_a_resume_that_fails_removes_nothing(tmp_path, monkeypatch):
    coterie.train(MATRIX, overrides=["schedule.steps=2"], out=tmp_path / "run")
    before = files(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        fails(patch)
        coterie.train(resume=tmp_path / "run", overrides=["schedule.steps=3"])
    assert files(tmp_path) == before


@posix
def test_a_start_that_was_killed_does_not_block_its_folder(tmp_path, caplog):
    folder = tmp_path / "run"
    code = """
        import time
        from coterie.backends.trainers.tabular import TabularTrainer
        async def stuck(self, ctx): time.sleep(600)
        TabularTrainer.open = stuck
        """
    script = (
        "\n".join(line.strip() for line in code.splitlines()) + "\nfrom coterie.cli.main import main\nmain()"
    )
    stuck = subprocess.Popen([sys.executable, "-c", script, "run", MATRIX, "--out", str(folder)])
    try:
        end = time.monotonic() + 60
        while not (folder / "metrics.jsonl").exists():
            assert stuck.poll() is None and time.monotonic() < end
            time.sleep(0.02)
        before = (folder / "config.yaml").read_text()
        with pytest.raises(coterie.RunFolderError, match="another process is training"):
            coterie.train(MATRIX, overrides=["seed=7"], out=folder)
        assert (folder / "config.yaml").read_text() == before, "a live start keeps its folder"
    finally:
        stuck.send_signal(signal.SIGKILL)
        stuck.wait()
    shutil.copytree(folder, tmp_path / "copy")
    for start in ({"resume": tmp_path / "copy"}, {"source": MATRIX, "out": folder}):
        caplog.clear()
        assert coterie.train(**start).finished
        assert "stopped before its first checkpoint: starting over" in caplog.text


def test_a_source_that_cannot_connect_is_named_and_blocks_no_folder(tmp_path, command):
    folder = tmp_path / "run"
    done = command("run", MATRIX, "rewards.judge={type: 'unreached:Source'}", "--out", folder)
    assert done.returncode == 2 and "rewards.judge: reward 'unreached:Source' of" in done.stderr, done.stderr
    assert "could not open\n  why: ConnectionRefusedError" in done.stderr and "fix: make sure" in done.stderr
    assert not folder.exists()
