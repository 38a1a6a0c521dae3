"""`coterie doctor`, of the machine and of runs; what a run's end says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import coterie as package
from coterie.analysis.diagnosis import machine
from coterie.analysis.diagnosis.machine_hardware import fault, ok
from coterie.cli.commands.run import TOLD_BY_SIGNALS, report_sicknesses
from tests.cli.support import TABULAR, coterie

MATRIX = Path(__file__).parents[1] / "recipes" / "matrix.yaml"


def test_the_machine_in_lines_with_fixes(monkeypatch):
    checks = {"disk": lambda: [ok("disk", "much")], "files": lambda: [fault("files", "few", "ulimit")]}
    monkeypatch.setattr(machine, "CHECKS", checks)
    done = coterie("doctor", "--no-self-test")
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "ok       disk   much",
        "fault    files  few",
        " " * 16 + "fix: ulimit",
    ]
    as_json = coterie("doctor", "--no-self-test", "--json")
    table = json.loads(as_json.stdout)
    assert as_json.exit_code == 1 and table["ok"] is False
    assert table["checks"][1] == {
        "name": "files",
        "status": "fault",
        "says": "few",
        "fix": "ulimit",
        "facts": {},
    }
    monkeypatch.setattr(machine, "CHECKS", {"disk": checks["disk"]})
    assert coterie("doctor", "--no-self-test").exit_code == 0


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("doctor") / "run"
    overrides = ["schedule.steps=15", "schedule.evaluate_every=5"]
    package.train(MATRIX, overrides=overrides, out=folder)
    return folder


def test_a_real_run_that_learns_is_healthy(healthy):
    done = coterie("doctor", healthy)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        f"{healthy}: 15 steps, 15 rollout files read",
        "ok       no known sickness",
    ]
    table = json.loads(coterie("doctor", healthy, "--json").stdout)
    assert table == {
        "folder": str(healthy), "ok": True, "steps": 15, "recorded": [*range(1, 16)], "sicknesses": [],
        "remarks": [],
    }  # fmt: skip
    report_sicknesses(healthy)


def test_a_run_that_can_not_learn_says_so_at_its_end_and_to_the_doctor(tmp_path):
    run = tmp_path / "run"
    overrides = ["sampler.sampling.temperature=0", "schedule.tasks_per_step=1", "schedule.evaluate_every=0"]
    done = coterie("run", TABULAR, "-o", run, "schedule.steps=12", *overrides)
    assert done.exit_code == 0, done.output
    told = [line for line in done.stderr.splitlines() if line.startswith(("fault:", "warning: empty"))]
    assert all("no_variance" not in line and "zero_gradient" not in line for line in told), "the signs say it"
    if told:
        assert f"what helps: coterie doctor {run}" in done.stderr
    doctor = coterie("doctor", run)
    assert doctor.exit_code == 1 and doctor.stdout.startswith(f"{run}: 12 steps, 12 rollout files read\n")
    assert "fault    no_variance since step 1: groups/executor/zero_variance" in doctor.stdout
    assert "         helps: " in doctor.stdout


def test_the_end_repeats_no_sign_and_raises_nothing(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("name: x\n")
    rows = [
        {"step": n, "success": 0.2, "empty/a": 0.5, "reward/a": 0.1, "groups/a/zero_variance": 1.0}
        for n in range(1, 11)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report_sicknesses(tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == ["no_variance", "empty"]
    assert lines[-1] == f"what helps: coterie doctor {tmp_path}"
    report_sicknesses(tmp_path, {"equal_rewards": (1, 10)})
    assert "no_variance" not in capsys.readouterr().err
    (tmp_path / "metrics.jsonl").write_text("{\n{}\n")
    report_sicknesses(tmp_path)
    assert capsys.readouterr().err.startswith("no diagnosis of the run: ")


def test_the_signs_are_known():
    from coterie.analysis.diagnosis.run import RULES
    from coterie.api.signals import RULES as SIGNS

    assert {*TOLD_BY_SIGNALS} == {sign.name for sign in SIGNS}
    assert {*TOLD_BY_SIGNALS.values()} <= {rule.kind for rule in RULES}


def test_the_runs_of_a_folder_are_looked_at_one_by_one(healthy, tmp_path):
    for seed in ("seed-0", "seed-1"):
        (tmp_path / seed).symlink_to(healthy)
    done = coterie("doctor", tmp_path)
    titles = [f"{tmp_path / seed}: 15 steps, 15 rollout files read" for seed in ("seed-0", "seed-1")]
    assert done.exit_code == 0 and [*done.stdout.splitlines()[::2]] == titles
    tables = json.loads(coterie("doctor", tmp_path, "--json").stdout)
    assert [Path(table["folder"]).name for table in tables] == ["seed-0", "seed-1"]
    damaged = tmp_path / "seed-00"
    damaged.mkdir()
    (damaged / "config.yaml").write_text("env: {type: matrix}")
    (damaged / "metrics.jsonl").write_text("no JSON\n" * 3)
    done = coterie("doctor", tmp_path)
    assert done.exit_code == 1 and "seed-00" in done.stderr and [*done.stdout.splitlines()[::2]] == titles
    shutil.rmtree(damaged)
    refused = coterie("replay", tmp_path)
    assert refused.exit_code == 2 and f"fix: runs in {tmp_path}: seed-0, seed-1" in refused.stderr
    assert f"fix: runs in {tmp_path}: seed-0, seed-1" in coterie("explain", tmp_path).stderr


def test_a_plugin_file_is_among_the_plugins(tmp_path, monkeypatch):
    checks = {"plugins": machine.plugin_faults}
    monkeypatch.setattr(machine, "CHECKS", checks)
    (tmp_path / "mine_for_the_doctor.py").write_text("import nothing_that_there_is\n")
    done = coterie("doctor", "--no-self-test", "-p", tmp_path / "mine_for_the_doctor.py")
    assert done.exit_code == 2 and "mine_for_the_doctor.py" in done.stderr


def test_a_run_without_a_row_is_not_called_healthy_without_a_remark(healthy, tmp_path):
    shutil.copytree(healthy, tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    done = coterie("doctor", tmp_path / "run")
    assert "metrics.jsonl has no row, so that nothing can be said of the run" in done.stdout


def test_what_is_no_run_is_refused(tmp_path):
    done = coterie("doctor", tmp_path)
    assert done.exit_code == 2 and "is not a run folder" in done.stderr
