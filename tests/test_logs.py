"""Logs of processes and libraries: where they are, how they begin, how long they get."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coterie import logs


def printing(text: str, who: str) -> None:
    """A process that prints, with its output in a log."""
    log = logs.opened(who)
    assert log is not None
    with log:
        subprocess.run([sys.executable, "-c", f"print({text!r})"], stdout=log, check=True)


def test_a_log_is_continued_and_each_part_begins_with_its_time_and_process(tmp_path: Path) -> None:
    for text in ("first", "second"):
        with logs.kept_in(tmp_path / "logs"):
            assert logs.where("rank 1/x") == str(tmp_path / "logs" / "rank_1_x.log")
            printing(text, "rank 1/x")
    head, first, again, second = (tmp_path / "logs" / "rank_1_x.log").read_text().splitlines()
    assert (first, second) == ("first", "second")
    assert all(line.startswith("=== 2") and line.endswith(f"process {os.getpid()}") for line in (head, again))


def test_without_a_folder_and_where_all_is_shown_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert logs.opened("rank-1") is None and logs.where("rank-1") == "the messages above"
    monkeypatch.setenv(logs.VERBOSE, "1")
    with logs.kept_in(tmp_path / "logs"):
        assert logs.opened("rank-1") is None
    assert not (tmp_path / "logs").exists()


def test_a_python_users_own_output_stays_and_there_is_no_log_of_libraries(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with logs.kept_in(tmp_path / "logs"):
        print("printed")
        os.write(2, b"written\n")
        assert logs.where(logs.LIBRARIES) == "the messages above"
    assert capfd.readouterr() == ("printed\n", "written\n")
    assert not (tmp_path / "logs").exists()


def test_logs_that_nobody_wrote_to_are_removed_where_a_start_fails(tmp_path: Path) -> None:
    for text in ("", "a reason"):
        with pytest.raises(KeyError), logs.kept_in(tmp_path / "logs"):
            log = logs.opened("rank-1")
            assert log is not None
            log.write(text)
            log.close()
            raise KeyError
        assert (tmp_path / "logs").exists() is bool(text)


def test_a_long_log_keeps_its_end_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LIMIT", 1 << 20)
    path = tmp_path / "logs" / "rank-1.log"
    with logs.kept_in(path.parent), logs.opened("rank-1") as log:  # type: ignore[union-attr]
        log.write("".join(f"line {number}\n" for number in range(200_000)))
        logs.shorten(path)
        log.write("after\n")
    first, second, *_, last, after = path.read_text().splitlines()
    assert path.stat().st_size <= logs.LIMIT and "older lines were dropped" in first and "1 MiB" in first
    assert second.startswith("line ") and (last, after) == ("line 199999", "after")
    logs.shorten(path)
    assert path.read_text().startswith(f"{first}\n{second}\n")


def test_the_sizes_of_logs_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LIMIT", 100)
    monkeypatch.setattr(logs, "SECONDS", 0.01)
    folder = tmp_path / "logs"
    with logs.kept_in(folder):
        printing("x" * 80 + "\n" + "y" * 200 + "\nend", "rank-1")
        while "dropped" not in (folder / "rank-1.log").read_text():  # a test has a limit of its own
            time.sleep(0.01)
    assert (folder / "rank-1.log").read_text().endswith("end\n")
    monkeypatch.setattr(logs, "SECONDS", 3600)
    with logs.kept_in(folder):
        printing("z" * 300 + "\nend", "rank-2")
    assert "dropped" in (folder / "rank-2.log").read_text(), "also of a run that ends before the next look"


def speak(text: str) -> None:
    print(text, flush=True)
    os.write(2, b"native\n")


@pytest.mark.skipif(sys.platform != "linux", reason="vLLM is for Linux")
def test_a_process_that_multiprocessing_spawns_for_vllm_prints_to_its_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from coterie.backends.engines.vllm import launch

    with logs.kept_in(tmp_path):
        for diverted in (True, False):
            undo = launch.divert("vllm-p-0") if diverted else None
            process = multiprocessing.get_context("spawn").Process(target=speak, args=(f"{diverted}",))
            process.start()
            if undo is not None:
                undo()
            process.join()
            assert process.exitcode == 0
    assert (tmp_path / "vllm-p-0.log").read_text().splitlines()[1:] == ["True", "native"]
    assert capfd.readouterr() == ("False\n", "native\n")
