"""run, resume, eval and export on a team that learns in tables, in seconds and without torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from ruamel.yaml import YAML

from coterie.viewing.text import CONTROLS
from tests.cli.support import TABULAR, coterie


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    done = coterie("run", TABULAR, "--out", folder)
    assert done.exit_code == 0, done.output
    return folder


def evaluated(*arguments):
    done = coterie("eval", *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_run_says_where_it_is_and_how_far(tmp_path):
    done = coterie("run", TABULAR, "schedule.steps=2", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{tmp_path / 'run'}  step 2/2")
    assert "step 2/2" in done.stderr, "progress is on stderr"
    assert (tmp_path / "run" / "config.yaml").is_file()
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2


def test_the_default_folder_is_named_by_recipe_and_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert coterie("run", TABULAR, "schedule.steps=1").exit_code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("tabular-2")


def test_resuming_a_finished_run_is_no_error(folder):
    done = coterie("run", "--resume", folder)
    assert done.exit_code == 0 and "step 4/4" in done.stdout and "finished already" in done.stdout


def test_a_run_may_grow_on_resume(tmp_path):
    assert coterie("run", TABULAR, "schedule.steps=2", "--out", tmp_path / "run").exit_code == 0
    done = coterie("run", "--resume", tmp_path / "run", "schedule.steps=3")
    assert done.exit_code == 0, done.output
    assert "step 3/3" in done.stdout
    standing = json.loads(coterie("runs", tmp_path, "--json").stdout)[0]
    assert (standing["step"], standing["steps"], standing["finished"]) == (3, 3, True)


def test_a_run_that_its_time_stops_says_how_to_go_on_and_exits_0(tmp_path):
    done = coterie("run", TABULAR, "schedule.stop_after=1e-9", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert f"coterie run --resume {tmp_path / 'run'}" in done.stderr


def test_eval_prints_success_with_its_interval_and_nothing_else_on_stdout(folder):
    result = evaluated(folder, "--tasks", "16", "--samples", "2")
    assert set(result["success"]) == {"mean", "ci95", "n"} and result["success"]["n"] == 16
    low, high = result["success"]["ci95"]
    assert 0 <= low <= result["success"]["mean"] <= high <= 1
    assert set(result["roles"]) == {"planner", "executor"}
    assert result["metrics"] and len(result["config_digest"]) == 64


def test_eval_takes_a_recipe_a_split_greed_and_overrides():
    result = evaluated(TABULAR, "env.size=4", "--split", "val", "--tasks", "4", "--greedy")
    assert result["success"]["n"] == 4


def test_eval_of_a_checkpoint_by_name_and_step(folder):
    best, latest, fourth = (
        evaluated(folder, "--tasks", "8", "--checkpoint", which) for which in ("best", "latest", "4")
    )
    assert latest["success"] == fourth["success"] and best["success"]["n"] == 8


def test_a_run_folder_may_be_named_without_a_slash(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert evaluated(folder.name, "--tasks", "4")["success"]["n"] == 4


def test_eval_for_people_with_episodes(folder):
    done = coterie("eval", folder, "--tasks", "8", "--show", "2")
    assert done.exit_code == 0, done.output
    assert done.stdout.count("turn 1  planner") == 2
    assert "95 % interval over 8 test tasks" in done.stdout and "role executor" in done.stdout


def test_episodes_do_nothing_to_the_terminal_and_json_keeps_their_texts(folder, monkeypatch):
    monkeypatch.setattr("coterie.api.compare.episode_text", lambda tree: "> \x1b[2J\x9b\u202e")
    assert "> \\x1b[2J\\x9b\\u202e\n" in coterie("eval", folder, "--tasks", "2", "--show", "1").stdout
    text = coterie("eval", folder, "--tasks", "2", "--show", "1", "--json").stdout
    assert not CONTROLS.search(text) and json.loads(text)["episodes"] == ["> \x1b[2J\x9b\u202e"]


def test_eval_of_swapped_policies_prints_paired_differences_per_task(tmp_path):
    two = "policies: {other: {model: {init: tabular}}}\nteam: {roles: {executor: {policy: other}}}\n"
    recipe = tmp_path / "two.yaml"
    (tmp_path / "tabular.yaml").write_text(TABULAR.read_text())
    recipe.write_text("extends: tabular.yaml\n" + two)
    arguments = (recipe, "--tasks", "8", "--swap", "planner=executor")
    comparison = evaluated(*arguments)["comparison"]
    assert comparison["changes"] == [{"change": "swap", "roles": ["planner", "executor"]}]
    assert comparison["team"] == {"planner": "other", "executor": "shared"}
    assert set(comparison["difference"]) == {"mean", "ci95", "n", "p"} and len(comparison["per_task"]) == 8
    text = coterie("eval", *arguments).stdout
    assert "paired by task" in text and "of 8 tasks differ" in text


def test_config_of_a_run_is_what_it_ran_with(folder):
    shown = json.loads(coterie("config", folder, "--json").stdout)
    assert shown["name"] == "tabular" and shown["config"]["schedule"]["steps"] == 4


# ------------------------------------------------------------------------------------------------ interrupts


def started(folder, code=""):
    """A long run in a process of its own."""
    settings = ("schedule.steps=100000", "schedule.record_every=0", "schedule.evaluate_every=0")
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"{textwrap.dedent(code)}\nfrom coterie.cli.main import main\nmain()",
            *("run", TABULAR, *settings, "schedule.checkpoint_every=0", "--out", folder),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(true, process):
    end = time.monotonic() + 60
    while not true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_saves_and_says_how_to_resume(tmp_path, number):
    folder = tmp_path / "run"
    process = started(folder)
    metrics = folder / "metrics.jsonl"
    wait_for(lambda: metrics.is_file() and metrics.stat().st_size > 0, process)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert "; press again to stop at once" in err
    assert f"coterie run --resume {folder}" in err and "Traceback" not in err
    step = int(out.split("step ")[1].split("/")[0])
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["step"] == step, "the last step that was tracked is the one that was saved"
    with (folder / "config.yaml").open() as file:
        assert YAML(typ="safe", pure=True).load(file)["schedule"]["steps"] == 100_000
    result = evaluated(folder, "--tasks", "4", "--checkpoint", str(step))
    assert result["success"]["n"] == 4


def test_a_second_signal_stops_at_once(tmp_path):
    process = started(
        tmp_path / "run",
        code="""
            import pathlib, sys, time
            from coterie.core.training.run import Run

            def finish(*_):
                (pathlib.Path(sys.argv[-1]) / "stuck").touch()
                time.sleep(3600)

            Run.finish = finish
        """,
    )
    wait_for((tmp_path / "run" / "stuck").exists, process)
    os.kill(process.pid, signal.SIGINT)
    lines = iter(process.stderr.readline, "")
    assert any(line.startswith("finishing the step") for line in lines)
    time.sleep(0.3)
    assert process.poll() is None, "the first signal alone waits for the step"
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "stopped" in err and "Traceback" not in err
