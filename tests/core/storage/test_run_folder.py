"""The run folder, and the metrics log under kills and full disks."""

from __future__ import annotations

import json
import math
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from coterie.api.rows import read_metrics
from coterie.api.run_files import claimed, create_run
from coterie.core.errors import RunFolderError, WriteError
from coterie.core.storage.jsonl import MetricsLog, to_json
from coterie.core.storage.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[3]
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals, locks and file limits of POSIX")


# ------------------------------------------------------------------------------------------------ run folder


def test_a_run_folder_is_made_once_and_opened_again(tmp_path):
    folder = create_run(tmp_path / "deep" / "run", "seed: 1\n")
    again = RunFolder.open(tmp_path / "deep" / "run")
    assert again == folder and again.config.read_text() == "seed: 1\n"
    assert folder.rollouts.is_dir() and folder.checkpoints.is_dir() and folder.eval.is_dir()
    assert folder.metrics.name == "metrics.jsonl" and folder.rollout_file(7).name == "step-000007.jsonl.gz"


@pytest.mark.parametrize("used", ["metrics.jsonl", "checkpoints/step-000000", "rollouts/a", "eval/a"])
def test_a_folder_that_holds_a_run_is_refused_with_how_to_resume_it(tmp_path, used):
    create_run(tmp_path, "seed: 1\n")
    (tmp_path / used).write_text("{}")
    with pytest.raises(RunFolderError, match="holds a run already") as caught:
        create_run(tmp_path, "seed: 2\n")
    assert "resume" in caught.value.fix and caught.value.why
    assert (tmp_path / "config.yaml").read_text() == "seed: 1\n"


def test_a_run_that_saved_nothing_makes_room_and_a_configuration_of_the_user_does_not(tmp_path):
    run = create_run(tmp_path / "run", "seed: 1\n")
    (run.checkpoints / ".tmp-step-000000-ab12").mkdir()
    run.metrics.touch()
    assert create_run(tmp_path / "run", "seed: 2\n").config.read_text() == "seed: 2\n"
    (tmp_path / "config.yaml").write_text("mine")
    with pytest.raises(RunFolderError, match="holds a run already"):
        create_run(tmp_path, "seed: 3\n")
    assert (tmp_path / "config.yaml").read_text() == "mine"


def test_a_folder_with_other_things_may_become_a_run(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    create_run(tmp_path, "")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    create_run(tmp_path / "good", "")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFolderError, match="not a run folder") as caught:
        RunFolder.open(tmp_path / "empty")
    assert "config.yaml" in caught.value.why and "good" in caught.value.fix
    with pytest.raises(RunFolderError, match="no such folder"):
        RunFolder.open(tmp_path / "absent")


def test_a_folder_that_cannot_be_written_is_an_error_with_why_and_fix(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WriteError, match="can't be written") as caught:
        create_run(tmp_path / "file" / "run", "")
    assert "Not a directory" in caught.value.why and caught.value.fix


@posix
def test_two_processes_cannot_train_in_one_folder(tmp_path):
    folder = create_run(tmp_path, "")
    script = (
        "from coterie.api.run_files import *; from pathlib import Path; import sys\n"
        "with claimed(RunFolder.open(Path(sys.argv[1]))): print('in')"
    )
    with claimed(folder):
        other = subprocess.run(
            [sys.executable, "-c", script, tmp_path], cwd=ROOT, capture_output=True, text=True
        )
        assert "another process is training" in other.stderr and other.stdout == ""
    other = subprocess.run([sys.executable, "-c", script, tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert other.stdout == "in\n", other.stderr


# --------------------------------------------------------------------------------------------------- metrics


def test_rows_come_back_and_what_is_not_finite_is_null_with_its_key(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.append(
        1, {"loss": 0.1 + 0.2, "nan": math.nan, "up": math.inf, "np": np.float32(0.5), "n": np.int64(3)}
    )
    log.append(2, {"eval": {"success": {"mean": -math.inf, "ci95": [None, 1.0]}}, "text": "\ud800 é"})
    log.close()
    first, second = read_metrics(path)
    assert first == {"step": 1, "loss": 0.1 + 0.2, "nan": None, "up": None, "np": 0.5, "n": 3}
    assert second["eval"] == {"success": {"mean": None, "ci95": [None, 1.0]}}
    assert "NaN" not in path.read_text() and "Infinity" not in path.read_text()
    with pytest.raises(ValueError, match="closed"):
        log.append(3, {})


@given(st.dictionaries(st.text(max_size=4), st.floats(), max_size=4), st.text(max_size=20))
@settings(max_examples=60, deadline=None)
def test_json_is_strict_one_line_and_exact(numbers, text):
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    line = to_json({"numbers": numbers, "text": text})
    assert "\n" not in line and "\r" not in line
    back = json.loads(line.encode(), parse_constant=refuse)
    assert back["text"] == text
    for key, value in numbers.items():
        assert back["numbers"][key] == (value if math.isfinite(value) else None)


def test_what_cannot_be_written_is_an_error_and_leaves_no_half_row(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(1, {"a": 1})
    with pytest.raises(TypeError, match="object"):
        log.append(2, {"a": object()})
    with pytest.raises(ValueError, match="own key"):
        log.append(2, {"step": 7})
    log.append(2, {"a": 2})
    assert read_metrics(log.path) == [{"step": 1, "a": 1}, {"step": 2, "a": 2}]


@given(st.integers(0, 200))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_torn_anywhere_gives_its_whole_rows_and_goes_on(tmp_path, cut):
    path = tmp_path / "metrics.jsonl"
    path.unlink(missing_ok=True)
    log = MetricsLog(path)
    for step in range(1, 6):
        log.append(step, {"loss": 1 / step})
    log.close()
    raw = path.read_bytes()
    path.write_bytes(raw[: min(cut, len(raw))])
    whole = (raw[: min(cut, len(raw))] + b"\n").count(b"}\n")  # the last may lack its newline alone
    assert [row["step"] for row in read_metrics(path)] == list(range(1, whole + 1))
    log = MetricsLog(path)
    log.append(9, {"loss": 0.0})
    log.close()
    assert [row["step"] for row in read_metrics(path)] == [*range(1, whole + 1), 9]


def test_rows_after_the_restored_checkpoint_are_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in range(1, 6):
        log.append(step, {"loss": step / 3})
    before = path.read_bytes().splitlines(keepends=True)
    with open(path, "ab") as file:
        file.write(b'{"step": 6, "lo')
    assert log.truncate_after(3) == 3, "two rows and the torn line"
    assert path.read_bytes() == b"".join(before[:3]), "kept rows stay as they were, byte for byte"
    assert log.truncate_after(3) == 0
    log.append(4, {"again": True})
    log.close()
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3, 4]


def test_a_line_damaged_in_the_middle_is_no_torn_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st#p": 2}\n{"step": 3}\n')
    with pytest.raises(RunFolderError, match="line 2 is damaged"):
        read_metrics(path)
    with pytest.raises(RunFolderError, match="doesn't exist"):
        read_metrics(tmp_path / "absent")


@posix
def test_kill_9_while_appending_tears_one_line_at_most(tmp_path):
    script = """
        import sys
        from pathlib import Path
        from coterie.api.rows import read_metrics
        from coterie.core.storage.jsonl import MetricsLog
        path = Path(sys.argv[1])
        log = MetricsLog(path)
        step = len(read_metrics(path))
        while True:
            step += 1
            log.append(step, {f"metric/{i}": step / 7 for i in range(300)})
            print(step, flush=True)
        """
    path, clock, appended = tmp_path / "metrics.jsonl", random.Random(3), 0
    for _ in range(3):
        command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            time.sleep(clock.uniform(0.0, 0.04))
            process.send_signal(signal.SIGKILL)
            appended = max(appended, *map(int, (first + process.stdout.read()).split()))
        rows = read_metrics(path)
        assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
        assert len(rows) in (appended, appended + 1) and len(rows[-1]) == 301


@posix
def test_a_full_disk_leaves_no_half_row(tmp_path):
    """RLIMIT_FSIZE lets a part of the row through (a short write), and then fails: EFBIG."""
    script = """
        import resource, signal, sys
        from pathlib import Path
        from coterie.core.errors import WriteError
        from coterie.core.storage.jsonl import MetricsLog
        log = MetricsLog(Path(sys.argv[1]))
        log.append(1, {"text": "x" * 3000})
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
        try:
            log.append(2, {"text": "y" * 3000})
        except WriteError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        log.append(2, {"text": "z"})
        """
    path = tmp_path / "metrics.jsonl"
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "File too large" in done.stdout and not done.stderr, done.stderr
    assert [(row["step"], row["text"][0]) for row in read_metrics(path)] == [(1, "x"), (2, "z")]
