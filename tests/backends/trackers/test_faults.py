"""Trackers whose servers fail or hang, and a full disk: a run loses their rows and nothing else."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coterie.api.rows import read_metrics
from coterie.backends.trackers.common import flat

ROOT = Path(__file__).resolve().parents[3]
for package in ("tensorboard", "wandb", "mlflow", "sqlalchemy", "weave"):
    pytest.importorskip(package)

LOST = {
    **{
        f"{library}_{fault}": 4
        for library in ("wandb", "mlflow", "weave")
        for fault in ("500", "401", "hang")
    },
    "mlflow_later": 4,
    "weave_later": 4,
    "hangs": 4,
    "hangs_at_once": 4,
    "fails_once": 1,
}
"""Tracker -> rows that it loses of four."""


def in_a_process(module: str, *arguments: str) -> tuple[str, float]:
    """What a module's process said, and the seconds from its last line to its end."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WANDB_API_KEY": "k" * 40}
    command = [sys.executable, "-m", f"tests.backends.trackers.{module}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    ended = time.time()
    assert done.returncode == 0, done.stderr[-3000:]
    [begun] = re.findall(r"ended at ([\d.]+)", done.stdout)
    return done.stderr, ended - float(begun)


def scalars(folder: Path) -> dict[int, dict[str, float]]:
    """step -> name -> value, of TensorBoard's files."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    read: dict[int, dict[str, float]] = {}
    for tag in events.Tags()["tensors"]:
        if events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars":
            for event in events.Tensors(tag):
                read.setdefault(event.step, {})[tag] = tensor_util.make_ndarray(event.tensor_proto).item()
    return read


def tables_of_episodes(folder: Path) -> int:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    [file] = folder.iterdir()
    events = LegacyEventFileLoader(str(file)).Load()
    return sum(value.tag == "logged_episodes" for event in events for value in event.summary.value)


def test_every_fault_at_once(tmp_path):
    said, seconds = in_a_process("faulty_run", str(tmp_path / "run"))
    assert seconds < 6, "no thread, process or exit hook of a library keeps the run's process"
    rows = {row.pop("step"): row for row in read_metrics(tmp_path / "run" / "metrics.jsonl")}
    assert sorted(rows) == [1, 2, 3, 4]
    for file, number in {"lines.jsonl": 4, "fails_once.jsonl": 3}.items():
        kept = {row.pop("step"): row for row in read_metrics(tmp_path / "run" / file)}
        assert len(kept) == number and all(rows[step] == row for step, row in kept.items())
    stored = scalars(tmp_path / "run" / "tensorboard")
    assert {step: {*of} for step, of in stored.items()} == {
        step: {*dict(flat(row))} for step, row in rows.items()
    }
    for name in (*LOST, "wandb_later"):
        first = re.findall(rf"^step \d: tracker .*(?:\n.*)*?\(trackers\.{name}\)$", said, re.MULTILINE)
        lines = [
            line for line in said.splitlines() if f"(trackers.{name})" in line and "metrics.jsonl" in line
        ]
        assert len(lines) == 1 and first, f"{name} is told once: {lines}"
    counted = dict(re.findall(r"rows of this run that .* \(trackers\.(\w+)\) has lost: (\d+)", said))
    assert counted == {name: str(number) for name, number in LOST.items()}
    assert rows[4]["machine/trackers/fails_once/lost"] == 1 and "machine/trackers/last/lost" not in rows[4]


def test_a_full_disk(tmp_path):
    said, _ = in_a_process("full_disk", str(tmp_path / "run"))
    rows = {row.pop("step"): row for row in read_metrics(tmp_path / "run" / "metrics.jsonl")}
    assert sorted(rows) == [1, 2, 3, 4, 5, 6]
    assert said.count("raised OSError: [Errno 27] File too large") == said.count("metrics.jsonl has all") == 1
    stored = scalars(tmp_path / "run" / "tensorboard")
    assert 1 in stored and {*stored} < {*rows}
    for step, read in stored.items():  # whole rows, and nothing torn before them
        numbers = {name: value for name, value in flat(rows[step]) if value is not None}
        assert {name: read[name] for name in numbers} == numbers
    [lost] = re.findall(r"\(trackers\.board\) has lost: (\d+)", said)
    tables = tables_of_episodes(tmp_path / "run" / "tensorboard")
    assert len(stored) + tables + int(lost) == 2 * len(rows), "each row and each table is stored or counted"


def test_ctrl_c_twice_ends_a_run_whose_tracker_hangs(tmp_path):
    """The first one finishes the step and would wait for the tracker; the second one does not."""
    tracker = "trackers={hangs: {type: 'tests.backends.trackers.plugins:Hangs'}}"
    settings = ["schedule.steps=100000", "schedule.evaluate_every=0", "schedule.record_every=0", tracker]
    main = "from coterie.cli.main import main; main()"
    command = [sys.executable, "-c", main, "run", str(ROOT / "tests/recipes/tabular.yaml"), *settings]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [*command, "--out", str(folder)], env=environment, text=True,
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    end = time.monotonic() + 60
    while not (folder / "metrics.jsonl").exists() or not (folder / "metrics.jsonl").read_text():
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    time.sleep(2)
    assert process.poll() is None, "it waits for the tracker"
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert time.monotonic() - begin < 12 and "resume" in said, said
