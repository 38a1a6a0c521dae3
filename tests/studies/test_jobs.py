"""The runner with real processes, some of them killed: jobs that are done are never run again."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from threading import Event

import pytest

from coterie.cli.guard import Child, alive, children
from coterie.core.config import to_yaml
from coterie.core.errors import ConfigError, RunFolderError
from coterie.core.storage.atomic import locked
from coterie.recipes import load
from coterie.studies import worker
from coterie.studies.catalogue import read_column
from coterie.studies.graph import StudyPlan, plan as plan_jobs
from coterie.studies.runner import Runner, StudyOutcome, display_path
from coterie.studies.study import Method, Study
from coterie.studies.worker import check_vocabulary
from tests.cli.support import coterie
from tests.studies.support import COLUMN, TINY, InOneProcess, column_file, plan_of, runner
from tests.studies.tiny import ONE, TWO

ROOT = Path(__file__).parents[2]
TOKENS = 2_560
"""80 steps, about a second of training: long enough to be interrupted twice."""
pytestmark = pytest.mark.xdist_group("studies")


@pytest.fixture(autouse=True)
def python_path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # the jobs' processes find tests.games


def command(out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "coterie", "reproduce", "one", "-p", str(TINY), "--columns", str(COLUMN),
         "--seeds", "1", "--jobs", "1", "--tokens", str(TOKENS), "--out", str(out), "--json"],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def training(out: Path, steps: int) -> Path:
    """The folder of the only training; waits until the run has this many steps."""
    for _ in range(6000):
        for metrics in out.glob("jobs/*-train-*/run/metrics.jsonl"):
            if metrics.read_bytes().count(b"\n") >= steps:
                return metrics.parents[1]
        time.sleep(0.02)
    raise AssertionError("the training never began")


def is_free(folder: Path) -> bool:
    """Wait until no process works on the job."""
    with locked(folder):
        return True


def rows(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]


def result(outcome: StudyOutcome) -> object:
    """The successes of the only evaluation, by task."""
    return next(job["per_task"] for job in outcome.results.values() if job["kind"] == "evaluate")


def again(out: Path, kind: type[Runner] = Runner) -> Runner:
    """A runner in this process of the plan that `command` runs."""
    return runner(plan_of("one", ONE, tokens=TOKENS), out, jobs=1, kind=kind)


def workers(pid: int) -> list[Child]:
    """The processes of jobs below a process."""
    return [
        child
        for child in children(pid)
        if b"studies.worker" in Path(f"/proc/{child[0]}/cmdline").read_bytes()
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(successes, metrics) of a study that is never interrupted."""
    out = tmp_path_factory.mktemp("whole")
    return result(again(out, InOneProcess).run()), rows(training(out, 1))


def test_a_killed_job_is_finished_by_the_next_call_to_the_same_result(tmp_path, whole):
    def kill() -> None:
        training(tmp_path, 22)
        [(pid, _)] = workers(os.getpid())
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    outcome = again(tmp_path).run()
    killer.join()
    assert sorted(outcome.states.values()) == ["failed", "skipped"]
    folder = training(tmp_path, 1)
    assert [*outcome.logs.values()] == [folder / "log.txt"]
    reasons = ["its process was killed by signal 9", "needs column seed 0: train shared"]
    assert sorted(outcome.errors.values()) == reasons
    reached = len(rows(folder))
    outcome = again(tmp_path, InOneProcess).run()
    assert (result(outcome), rows(folder)) == whole and len(rows(folder)) > reached


@pytest.mark.resume
def test_a_killed_and_an_interrupted_study_resume_to_the_same_result(tmp_path, whole):
    """kill -9 of the runner, then Ctrl-C; the third call runs to the end."""
    process = command(tmp_path)
    folder = training(tmp_path, 11)
    process.kill()
    process.communicate()
    assert is_free(folder), "no job outlives its runner"

    process = command(tmp_path)
    training(tmp_path, 33)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "the same command continues from here" in errors
    assert is_free(folder) and not (folder / "result.json").exists()
    reached = len(rows(folder))
    assert f"step-{reached:06d}" in os.listdir(folder / "run" / "checkpoints"), "the last step was saved"

    outcome = again(tmp_path).run()
    assert (result(outcome), rows(folder)) == whole
    assert len(rows(folder)) > reached


@pytest.mark.resume
def test_the_second_ctrl_c_ends_a_study_whose_job_hangs(tmp_path):
    process = command(tmp_path)
    training(tmp_path, 3)
    jobs = workers(process.pid)
    for pid, _ in jobs:
        os.kill(pid, signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None, "the first signal waits for the job"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip().endswith("stopped; the same command continues from here")
    assert jobs and not any(map(alive, jobs))


def test_a_failure_stops_only_the_jobs_that_need_it(tmp_path):
    # The plugin of the environment checks its settings, so that this error occurs in the job.
    broken = {"recipe": str(COLUMN.parent / "hand_over.yaml"), "overrides": ["env.tsks=1"]}
    file = column_file(tmp_path, forms={"shared": broken}, paper={})
    outcome = runner(plan_of("two", TWO, file), tmp_path / "out").run()
    assert sorted(outcome.states.values()) == ["failed", "failed", "skipped"]
    errors = list(outcome.errors.values())
    assert sum("did you mean 'tasks'?" in error for error in errors) == 2
    assert sum(error == "needs changed seed 0: train shared" for error in errors) == 1
    assert all(log.is_file() for log in outcome.logs.values()) and not outcome.interrupted


def test_an_interrupted_call_starts_nothing_more(tmp_path):
    event = Event()
    event.set()
    outcome = runner(plan_of("one", ONE), tmp_path, interrupt=event).run()
    assert outcome.interrupted and outcome.states == {}


def test_a_job_whose_folder_another_process_keeps_ends_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "LOCK_SECONDS", 0.2)
    (tmp_path / "job.json").write_text(json.dumps({"kind": "train"}))
    with locked(tmp_path):
        assert worker.main([str(tmp_path / "job.json")]) == 1
    assert "another process still works in" in (tmp_path / "error.json").read_text()


def test_an_error_of_an_earlier_call_is_not_reported_again(tmp_path):
    call = runner(plan_of("one", ONE), tmp_path, plugin_files=["none.py"], kind=InOneProcess)
    folder = call.folder(next(id_ for id_, job in call.plan.jobs.items() if job.kind == "train"))
    folder.mkdir(parents=True)
    (folder / "error.json").write_text(json.dumps({"error": "long fixed"}))
    outcome = call.run()
    assert any("none.py" in error for error in outcome.errors.values()), "the error names the missing plugin"
    assert not any("long fixed" in error for error in outcome.errors.values())


def based(folder: Path) -> StudyPlan:
    """The plan of a method that starts from common initial weights."""
    forms = {"base": "hand_over.yaml", "shared": "hand_over.yaml"}
    scales = {"cpu": {"tokens": 500, "tasks": 4, "base": True}}
    return plan_of("one", ONE, column_file(folder, forms=forms, scales=scales, paper={}))


def started(plan: StudyPlan, out: Path) -> Runner:
    """A runner whose call was interrupted before its first job."""
    event = Event()
    event.set()
    stopped = runner(plan, out, interrupt=event)
    stopped.run()
    return stopped


def test_a_run_of_a_moved_study_has_the_new_path_of_its_initial_weights(tmp_path):
    plan = based(tmp_path)
    before = runner(plan, tmp_path / "here")
    train = next(job for job in plan.jobs.values() if job.kind == "train")
    run, base = before.folder(train.id) / "run", before.folder(train.base)
    run.mkdir(parents=True)
    table = load(train.recipe, overrides=before.spec(train)["overrides"]).table
    (run / "config.yaml").write_text(to_yaml({"name": "x", **table}))
    (tmp_path / "here").rename(tmp_path / "there")
    moved = started(plan, tmp_path / "there")
    resolved = load(moved.folder(train.id) / "run")
    assert resolved.config.policies["shared"].model == str(tmp_path / "there" / "jobs" / base.name / "base")
    table["policies"]["shared"]["model"] = resolved.config.policies["shared"].model
    assert (resolved.table, resolved.name) == (table, "x"), "nothing else is changed"


def test_the_command_of_a_base_job_makes_its_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = based(tmp_path)
    base = next(id_ for id_, job in plan.jobs.items() if job.kind == "base")
    for line in started(plan, tmp_path / "out").outcome.commands[base].split(" && "):
        done = coterie(*shlex.split(line)[1:])
        assert done.exit_code == 0, done.output
    assert [path.name for path in tmp_path.glob("runs/*-weights/*.npz")] == ["table.npz"]


def test_a_training_that_two_columns_share_is_made_once_and_tested_on_the_tasks_of_each(tmp_path):
    columns = []
    for name, tasks in (("one", 5), ("two", 7)):
        (tmp_path / name).mkdir()
        file = column_file(tmp_path / name, test=[f"env.tasks={tasks}"])
        columns.append(read_column(file, name))
    plan = plan_jobs("two", TWO, columns, scale="cpu", seeds=1, tokens=160)
    outcome = runner(plan, tmp_path / "out", jobs=1, kind=InOneProcess).run()
    assert sorted(job.kind for job in plan.jobs.values()) == ["evaluate"] * 4 + ["train"]
    assert {*outcome.states.values()} == {"done"}
    for name, tasks in (("one", 5), ("two", 7)):
        for method in ("shared", "team"):
            id_ = plan.cells[name, method, 0].evaluation
            assert len(outcome.results[id_]["per_task"]) == tasks
            assert f"env.tasks={tasks}" in shlex.split(outcome.commands[id_])


def test_two_calls_in_one_folder_are_refused(tmp_path):
    with locked(tmp_path), pytest.raises(RunFolderError, match="another process is working"):
        runner(plan_of("one", ONE), tmp_path).run()


def test_common_initial_weights_must_know_every_word_of_a_variant(tmp_path):
    spec = {
        "base": str(tmp_path),
        "recipe": str(COLUMN.parent / "hand_over.yaml"),
        "overlays": [],
        "overrides": [],
        "scale": None,
    }
    for known in (["a", "b", "c", "d"], None):  # None: the tokenizer has no list of words
        (tmp_path / "words.json").write_text(json.dumps(known))
        check_vocabulary(spec)
    (tmp_path / "words.json").write_text(json.dumps(["a", "c"]))
    with pytest.raises(ConfigError, match="don't know the word 'b'"):
        check_vocabulary(spec)
    check_vocabulary({**spec, "base": None})


@pytest.mark.long
@pytest.mark.torch
def test_all_policies_start_from_the_weights_of_the_base(tmp_path):
    pytest.importorskip("torch")
    forms = {"base": "plan_path", "shared": "plan_path"}
    forms["per_role"] = {"recipe": "plan_path", "with": ["per_role"]}
    scales = {"smoke": {"tokens": 300, "tasks": 24, "base": True}}
    file = column_file(tmp_path, roles=["planner", "executor"], forms=forms, scales=scales, paper={})
    methods = (
        Method(id="per_role", title="", variant="per_role", swapped=True),
        Method(id="shared", title="", variant="shared"),
        Method(id="trained", title="", variant="shared", trained=True),
    )
    plan = plan_of("bases", Study(summary="", methods=lambda column: methods), file, scale="smoke")
    outcome = runner(plan, tmp_path / "out").run()
    assert set(outcome.states.values()) == {"done"}, outcome.errors
    per_role, shared, _ = (
        outcome.results[plan.cells["changed", method.id, 0].evaluation] for method in methods
    )
    # Two policies with the same weights give the same results when they are exchanged, and as one policy.
    assert per_role["changed_per_task"] == per_role["per_task"] == shared["per_task"]
    # A moved run still finds its initial weights, and its evaluation has the same result.
    (tmp_path / "out").rename(tmp_path / "there")
    moved = runner(plan, tmp_path / "there")
    cell = plan.cells["changed", "trained", 0].evaluation
    (moved.folder(cell) / "result.json").unlink()
    again = moved.run()
    assert set(again.states.values()) == {"done"}, again.errors
    assert again.results[cell]["per_task"] == outcome.results[cell]["per_task"]
    assert "Loading weights" not in (moved.folder(cell) / "log.txt").read_text()


def test_commands_have_paths_relative_to_the_working_directory(tmp_path, monkeypatch):
    """A table then names no machine's paths, and its commands work where it was made."""
    monkeypatch.chdir(tmp_path)
    outcome = runner(plan_of("one", ONE, tokens=64, tasks=4), Path("out"), kind=InOneProcess).run()
    assert any("out/jobs/" in command for command in outcome.commands.values())
    assert not any(str(tmp_path) in command for command in outcome.commands.values())
    assert display_path(tmp_path / "out") == Path("out") and display_path(tmp_path.parent) == tmp_path.parent


@pytest.mark.parametrize("full", ["result.json", "error.json"])
def test_a_job_that_cannot_write_its_result_fails_without_a_traceback(tmp_path, monkeypatch, capsys, full):
    """A folder of the file's name stands for a full disk: both fail with an OSError when the file is put."""

    def job(spec, folder, interrupt):
        (folder / full).mkdir()
        if full == "error.json":
            raise ConfigError("a setting")
        return {}

    spec = {"kind": "train", "plugins": [], "id": "x", "label": "x", "command": "x"}
    (tmp_path / "job.json").write_text(json.dumps(spec))
    monkeypatch.setitem(worker.HANDLERS, "train", job)
    assert worker.main([str(tmp_path / "job.json")]) == 1
    told = capsys.readouterr().err
    assert "Traceback" not in told and ("a setting" if full == "error.json" else "can't be written") in told
    if full == "result.json":
        assert "result.json can't be written" in json.loads((tmp_path / "error.json").read_text())["error"]
