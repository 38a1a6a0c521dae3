"""The runner: real processes, killed for real; nothing that was done is done again."""

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

from coterie.core.config import load, to_yaml
from coterie.core.errors import ConfigError, RunFolderError
from coterie.core.storage.atomic import locked
from coterie.studies.graph import Plan
from coterie.studies.runner import Outcome, Runner, near
from coterie.studies.study import Method, Study
from coterie.studies.worker import check_words
from tests.cli.support import coterie
from tests.studies.support import COLUMN, TINY, Here, column_file, plan_of, runner
from tests.studies.tiny import ONE, TWO

ROOT = Path(__file__).parents[2]
TOKENS = 2_560
"""80 steps, a second of training: enough to be stopped in the middle three times."""
pytestmark = pytest.mark.xdist_group("studies")


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # the jobs' processes find tests.games


def command(out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "coterie", "reproduce", "one", "-p", str(TINY), "--columns", str(COLUMN),
         "--seeds", "1", "--jobs", "1", "--tokens", str(TOKENS), "--out", str(out), "--json"],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def training(out: Path, steps: int) -> Path:
    """The folder of the one training, once it has so many steps behind it."""
    for _ in range(1200):
        for metrics in out.glob("jobs/*-train-*/run/metrics.jsonl"):
            if metrics.read_bytes().count(b"\n") >= steps:
                return metrics.parents[1]
        time.sleep(0.02)
    raise AssertionError("the training never began")


def is_free(folder: Path) -> bool:
    """Whether no process works on the job any more; waits for it."""
    with locked(folder):
        return True


def rows(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]


def result(found: Outcome) -> object:
    """What the one evaluation came to."""
    return next(one["per_task"] for one in found.results.values() if one["kind"] == "evaluate")


def again(out: Path) -> Runner:
    """What `command` runs, from here."""
    return runner(plan_of("one", ONE, tokens=TOKENS), out, jobs=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What comes out when nobody disturbs it."""
    out = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "_launch", lambda runner, folder: Here(folder))
        return result(again(out).run()), rows(training(out, 1))


def test_what_is_killed_and_stopped_goes_on_to_the_same_end(tmp_path, whole):
    """kill -9 of the runner, then of the job, then Ctrl-C; then left alone."""
    process = command(tmp_path)
    folder = training(tmp_path, 11)
    process.kill()
    process.communicate()
    assert is_free(folder), "no job outlives its runner"

    killed = again(tmp_path)

    def kill() -> None:
        training(tmp_path, 22)
        [child] = killed._children
        os.kill(child.process.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    found = killed.run()
    killer.join()
    assert sorted(found.states.values()) == ["failed", "skipped"]
    assert [*found.logs.values()] == [folder / "log.txt"]
    told = ["its process was killed by signal 9", "needs column seed 0: train shared"]
    assert sorted(found.errors.values()) == told

    process = command(tmp_path)
    training(tmp_path, 33)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "the same command goes on from here" in errors
    assert is_free(folder) and not (folder / "result.json").exists()
    reached = len(rows(folder))
    assert f"step-{reached:06d}" in os.listdir(folder / "run" / "checkpoints"), "the last step was saved"

    found = again(tmp_path).run()
    assert (result(found), rows(folder)) == whole
    assert len(rows(folder)) > reached


def test_a_failure_stops_nothing_but_what_needs_it(tmp_path):
    # The environment's own settings are its own to check, so this is found in the job.
    broken = {"recipe": str(COLUMN.parent / "hand_over.yaml"), "overrides": ["env.tsks=1"]}
    file = column_file(tmp_path, forms={"shared": broken}, paper={})
    found = runner(plan_of("two", TWO, file), tmp_path / "out").run()
    assert sorted(found.states.values()) == ["failed", "failed", "skipped"]
    errors = list(found.errors.values())
    assert sum("did you mean 'tasks'?" in error for error in errors) == 2
    assert sum(error == "needs changed seed 0: train shared" for error in errors) == 1
    assert all(log.is_file() for log in found.logs.values()) and not found.interrupted


def test_an_interrupted_call_starts_nothing_more(tmp_path):
    event = Event()
    event.set()
    found = runner(plan_of("one", ONE), tmp_path, interrupt=event).run()
    assert found.interrupted and found.states == {}


def test_an_error_of_an_earlier_call_is_not_told_again(tmp_path):
    made = runner(plan_of("one", ONE), tmp_path, plugin_files=["none.py"])
    folder = made.folder(next(id_ for id_, job in made.plan.jobs.items() if job.kind == "train"))
    folder.mkdir(parents=True)
    (folder / "error.json").write_text(json.dumps({"error": "long mended"}))
    found = made.run()
    assert any("none.py" in error for error in found.errors.values()), "a plugin that is gone is told as such"
    assert not any("long mended" in error for error in found.errors.values())


def based(folder: Path) -> Plan:
    """The plan of a row that starts from a common start."""
    forms = {"base": "hand_over.yaml", "shared": "hand_over.yaml"}
    scales = {"cpu": {"tokens": 500, "tasks": 4, "base": True}}
    return plan_of("one", ONE, column_file(folder, forms=forms, scales=scales, paper={}))


def started(plan: Plan, out: Path) -> Runner:
    """A call that is interrupted before its first job."""
    event = Event()
    event.set()
    made = runner(plan, out, interrupt=event)
    made.run()
    return made


def test_a_run_whose_study_was_moved_is_told_where_its_start_is_now(tmp_path):
    plan = based(tmp_path)
    made = runner(plan, tmp_path / "here")
    train = next(job for job in plan.jobs.values() if job.kind == "train")
    run, base = made.folder(train.id) / "run", made.folder(train.base)
    run.mkdir(parents=True)
    table = load(train.recipe, overrides=made._spec(train)["overrides"]).table
    (run / "config.yaml").write_text(to_yaml({"name": "x", **table}))
    (tmp_path / "here").rename(tmp_path / "there")
    moved = started(plan, tmp_path / "there")
    found = load(moved.folder(train.id) / "run")
    assert found.config.policies["shared"].model == str(tmp_path / "there" / "jobs" / base.name / "base")
    table["policies"]["shared"]["model"] = found.config.policies["shared"].model
    assert (found.table, found.name) == (table, "x"), "and nothing else is changed"


def test_the_command_of_a_common_start_makes_its_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = based(tmp_path)
    base = next(id_ for id_, job in plan.jobs.items() if job.kind == "base")
    for line in started(plan, tmp_path / "out").outcome.commands[base].split(" && "):
        done = coterie(*shlex.split(line)[1:])
        assert done.exit_code == 0, done.output
    assert [path.name for path in tmp_path.glob("runs/*-weights/*.npz")] == ["table.npz"]


def test_two_calls_in_one_folder_are_refused(tmp_path):
    with locked(tmp_path), pytest.raises(RunFolderError, match="another process is working"):
        runner(plan_of("one", ONE), tmp_path).run()


def test_a_common_start_must_know_every_word_of_a_form(tmp_path):
    spec = {
        "base": str(tmp_path),
        "recipe": str(COLUMN.parent / "hand_over.yaml"),
        "overrides": [],
        "scale": None,
    }
    for known in (["a", "b", "c", "d"], None):  # None: its tokenizer is no list of words
        (tmp_path / "words.json").write_text(json.dumps(known))
        check_words(spec)
    (tmp_path / "words.json").write_text(json.dumps(["a", "c"]))
    with pytest.raises(ConfigError, match="doesn't know the word 'b'"):
        check_words(spec)
    check_words({**spec, "base": None})


@pytest.mark.long
@pytest.mark.torch
def test_all_policies_start_from_the_weights_of_the_base(tmp_path):
    pytest.importorskip("torch")
    forms = {"base": "plan_path", "shared": "plan_path", "per_role": "plan_path_per_role"}
    scales = {"smoke": {"tokens": 300, "tasks": 24, "base": True}}
    file = column_file(tmp_path, roles=["planner", "executor"], forms=forms, scales=scales, paper={})
    rows = (
        Method(id="per_role", title="", form="per_role", swapped=True),
        Method(id="shared", title="", form="shared"),
        Method(id="trained", title="", form="shared", trained=True),
    )
    plan = plan_of("bases", Study(summary="", rows=lambda column: rows), file, scale="smoke")
    found = runner(plan, tmp_path / "out").run()
    assert set(found.states.values()) == {"done"}, found.errors
    per_role, shared, _ = (found.results[plan.cells["changed", row.id, 0].evaluation] for row in rows)
    # Two policies of the same weights: exchanged, and as one, they do the same on every task.
    assert per_role["changed_per_task"] == per_role["per_task"] == shared["per_task"]
    # Moved, a run still finds its start, and its evaluation comes to the same.
    (tmp_path / "out").rename(tmp_path / "there")
    moved = runner(plan, tmp_path / "there")
    cell = plan.cells["changed", "trained", 0].evaluation
    (moved.folder(cell) / "result.json").unlink()
    again = moved.run()
    assert set(again.states.values()) == {"done"}, again.errors
    assert again.results[cell]["per_task"] == found.results[cell]["per_task"]
    assert "Loading weights" not in (moved.folder(cell) / "log.txt").read_text()


def test_what_is_told_names_paths_from_the_working_folder(tmp_path, monkeypatch):
    """So that a table can be shown around, and its commands work where it was made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Runner, "_launch", lambda runner, folder: Here(folder))
    found = runner(plan_of("one", ONE, tokens=64, tasks=4), Path("out")).run()
    assert any("out/jobs/" in command for command in found.commands.values())
    assert not any(str(tmp_path) in command for command in found.commands.values())
    assert near(tmp_path / "out") == Path("out") and near(tmp_path.parent) == tmp_path.parent
