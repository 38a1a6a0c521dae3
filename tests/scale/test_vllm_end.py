"""The end of a run with vLLM in processes of its own: what it prints, and what it leaves."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from coterie.cli.guard import alive, children

pytestmark = pytest.mark.scale

TINY = "{init: qwen3, hidden_size: 64, layers: 1, heads: 2, head_dim: 32, mlp_size: 32, context: 64}"
SETTINGS = (
    "engine.type=vllm", "engine.process=own", "engine.kv_gib=0.25", f"policies.shared.model={TINY}",
    "policies.shared.warm_start=null", "schedule.tasks_per_step=2", "schedule.evaluate_every=0",
)  # fmt: skip
NOISE = ("Exception ignored", "leaked", "SystemExit")
OURS = r"(writing to|loaded in|step \d|finishing|not finished|warning: vLLM of 'shared' is restarted|/).*|"
"""The lines of a run on its terminal."""


def segments():
    """Shared memory that no process uses; another test's processes use theirs."""
    made = {path.name for path in Path("/dev/shm").glob("psm_*")}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            made -= set(re.findall(r"/dev/shm/(psm_\w+)", maps.read_text()))
    return made


def worker(run):
    """The process of a run's vLLM that computes."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            title = (process / "cmdline").read_bytes()
            if title.startswith(b"VLLM::Worker") and run in ancestors(process):
                return int(process.name)
    raise AssertionError("there is no worker")


def ancestors(process):
    pids = []
    while (parent := (process / "stat").read_text().rpartition(")")[2].split()[1]) != "0":
        pids.append(int(parent))
        process = Path("/proc", parent)
    return pids


@pytest.mark.parametrize(
    "group",
    [pytest.param(False, marks=pytest.mark.long, id="at its last step"),
     pytest.param(True, id="at SIGTERM to all its processes, after a death")],
)  # fmt: skip
def test_a_run_has_its_own_lines_on_the_terminal_and_leaves_no_memory(tmp_path, group):
    """SIGTERM, as a scheduler sends it, ends the step first, for which the run needs vLLM."""
    before, steps = segments(), 1000 if group else 1
    command = (sys.executable, "-m", "coterie", "run", "quickstart", *SETTINGS, f"schedule.steps={steps}")
    log, folder = tmp_path / "log", tmp_path / "run"
    with log.open("w") as file:
        run = subprocess.Popen(
            (*command, "--out", str(folder)), stdout=file, stderr=file, start_new_session=True
        )
    try:
        end = time.monotonic() + 240

        def wait(line):
            while not re.search(line, log.read_text(), re.M):
                assert run.poll() is None and time.monotonic() < end, log.read_text()
                time.sleep(0.2)

        if group:
            wait(r"^step \d+/")
            os.kill(worker(run.pid), signal.SIGKILL)
            wait(r"is restarted: .*[^$]*^step \d+/")
            os.killpg(run.pid, signal.SIGTERM)
        run.wait(max(end - time.monotonic(), 1))
    finally:
        if run.poll() is None:
            run.kill()
    text = log.read_text()
    assert all(re.fullmatch(OURS, line) for line in text.splitlines()), text
    assert ("not finished" in text) is group, text
    assert text.count("restarted") == group and segments() <= before
    place = folder / "logs" / "vllm-shared-0.log"
    assert not group or f"with these weights); see {place}\n" in text
    kept = "".join(path.read_text() for path in (folder / "logs").glob("*.log"))
    assert not [word for word in NOISE if word in kept], kept
    assert "Triton" in place.read_text() and place.read_text().count("===") == 1 + group


STOPPED = float(os.environ.get("COTERIE_TEST_STOPPED") or 3)
"""Seconds for which vLLM's engine is stopped."""


@pytest.mark.long
def test_a_run_whose_vllm_is_stopped_ends_within_five_seconds_of_the_second_ctrl_c(tmp_path):
    """It restarts nothing, says from which step a resume goes on, and leaves no process."""
    out, log = tmp_path / "run", tmp_path / "log"
    settings = (*SETTINGS, "schedule.steps=1000", "schedule.checkpoint_every=1")
    with log.open("w") as file:
        run = subprocess.Popen(
            (sys.executable, "-m", "coterie", "run", "quickstart", *settings, "--out", str(out)),
            stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    known = set()
    try:
        end = time.monotonic() + 240
        while not re.search(r"^step \d+/", log.read_text(), re.M):
            assert run.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.2)
        known = children(run.pid)
        engines = [pid for pid, _ in known if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(engines) == 1
        os.kill(engines[0], signal.SIGSTOP)
        time.sleep(STOPPED)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does
        time.sleep(1)
        assert run.poll() is None, "the first signal waits for the step"
        begin = time.monotonic()
        os.killpg(run.pid, signal.SIGINT)
        run.wait(30)
        took = time.monotonic() - begin
        while any(map(alive, known)) and time.monotonic() < begin + 5:
            time.sleep(0.02)
        left = [child for child in known if alive(child)]
    finally:
        for pid in [run.pid, *(child[0] for child in known if alive(child))]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    text = log.read_text()
    print(f"{took:.2f} s, exit code {run.returncode}\n{text}")
    step = max(int(path.name[5:]) for path in (out / "checkpoints").glob("step-*"))
    assert took < 5 and not left, text
    assert text.strip().endswith(f"stopped; resume from step {step} with: coterie run --resume {out}"), text
    assert "restarted" not in text and not [word for word in NOISE if word in text], text


def test_a_transfer_must_say_where_its_tensors_come_from():
    from coterie.backends.engines.vllm.worker import FileTransfer, LayerwiseReload

    with pytest.raises(TypeError, match="tensors"):
        type("Unfinished", (LayerwiseReload,), {})(None, None, None, None)
    assert not FileTransfer.__abstractmethods__
