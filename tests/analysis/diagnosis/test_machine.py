"""The checks of a machine: what they say of machines that this one isn't."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import namedtuple
from importlib import metadata
from types import SimpleNamespace

import pytest

import coterie
from coterie.analysis.diagnosis import machine, machine_hardware
from coterie.analysis.diagnosis.machine import CHECKS, diagnose_machine
from coterie.core.errors import UserError
from coterie.discovery import Report

Usage = namedtuple("Usage", "total used free")


def lines(check):
    return {line.name: line for line in check()}


def test_a_machine_is_checked_within_seconds_and_every_fault_has_its_fix():
    begin = time.process_time()
    diagnosis = coterie.doctor(self_test=False)
    assert time.process_time() - begin < 6  # 1 second here, and tests share cores
    assert {line.status for line in diagnosis.checks} <= {"ok", "warning", "fault"}
    assert all(bool(line.fix) == (line.status != "ok") for line in diagnosis.checks)
    names = [line.name for line in diagnosis.checks]
    assert {"versions", "extras", "plugins", "threads", "disk of runs", "open files", "sandbox"} <= {*names}
    assert diagnosis.as_dict()["ok"] is diagnosis.ok and "self-test" not in names


def test_a_check_that_raises_is_a_line(monkeypatch):
    def broken():
        raise RuntimeError("no such thing")

    monkeypatch.setattr(machine, "CHECKS", {"first": broken, "memory": CHECKS["memory"]})
    first, second = diagnose_machine(with_self_test=False).checks
    assert (first.name, first.status) == ("first", "warning") and "RuntimeError: no such thing" in first.says
    assert second.name == "memory"


def test_the_self_test_is_a_run_that_learns(tmp_path):
    result = machine.make(tmp_path)
    assert result["after"] - result["before"] > 0.4
    assert (tmp_path / "run" / "checkpoints").is_dir()


def test_the_self_test_ends_and_says_what_went_wrong(monkeypatch):
    def fake(code):
        return lambda *args, **options: subprocess.CompletedProcess(args, 0, code, "")

    monkeypatch.setattr(subprocess, "run", fake('log\n{"before": 0.1, "after": 0.9}\n'))
    assert machine.self_test().status == "ok"
    monkeypatch.setattr(subprocess, "run", fake('{"before": 0.1, "after": 0.25}'))
    assert machine.self_test().status == "fault" and "learned nothing" in machine.self_test().says
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    assert machine.self_test().status == "fault" and "ended with code 1" in machine.self_test().says


def test_the_self_test_is_ended_after_its_limit():
    line = machine.self_test(limit=0.05)
    assert line.status == "warning" and "more than 0.05 seconds" in line.says


def test_extras_are_installed_missing_too_old_or_broken(monkeypatch):
    needs = [
        'a==1; extra == "first"',
        'b>=2; extra == "second"',
        'c; extra == "third"',
        'd; extra == "torch"',
    ]
    extras = SimpleNamespace(get_all=lambda name: ["first", "second", "third", "torch", "dev"])
    versions = {"a": "1", "b": "1.9", "d": "3"}
    monkeypatch.setattr(metadata, "requires", lambda name: [*needs, "click>=8", 'x; extra == "dev"'])
    monkeypatch.setattr(metadata, "metadata", lambda name: extras)
    monkeypatch.setattr(machine, "version_of", lambda name: versions.get(name, ""))
    monkeypatch.setattr(machine, "importable", lambda module: module != "safetensors")
    of = lines(machine.extras)
    assert {*of} == {"extra second", "extra torch", "extras"}
    assert of["extra second"].status == "warning" and "b 1.9 is not >=2" in of["extra second"].says
    assert of["extra torch"].status == "fault" and "safetensors can't be imported" in of["extra torch"].says
    assert of["extras"].facts == {"installed": {"first": ["a 1"]}, "missing": ["third"]}
    assert 'pip install "coterie[third]"' in of["extras"].says


def test_a_python_that_is_too_old_is_a_fault(monkeypatch):
    monkeypatch.setattr(machine.platform, "python_version", lambda: "3.9.1")
    of = lines(machine.versions)
    assert of["python"].status == "fault" and "Python 3.9.1" in of["python"].says
    assert of["versions"].facts["numpy"] == metadata.version("numpy")


def test_a_broken_plugin_is_a_fault_and_a_slow_one_a_warning(monkeypatch):
    reports = [
        Report("x", "acme", "1", ok=False, errors=["ImportError:\n  no"]),
        Report("y", "slow", "1", warnings=["it takes 9 s"]),
        Report("z", "fine", "1"),
    ]
    monkeypatch.setattr(machine, "plugins", lambda: SimpleNamespace(reports=reports))
    of = lines(machine.plugin_faults)
    assert (of["plugin acme"].status, of["plugin acme"].says) == ("fault", "ImportError: no")
    assert "coterie plugins show acme" in of["plugin acme"].fix and of["plugin slow"].status == "warning"
    assert of["plugins"].says == "1 of 3 without a fault"


@pytest.mark.parametrize(
    ("text", "cores", "counted", "status", "part"),
    [
        ("4", 8, 8, "ok", "OMP_NUM_THREADS=4"),
        ("9", 8, 8, "warning", "threads wait in turn"),
        ("4,2", 8, 8, "ok", "OMP_NUM_THREADS=4"),
        ("many", 8, 8, "warning", "is no number"),
        (None, 8, 8, "ok", "OMP_NUM_THREADS=4 for each"),
        (None, 2, 64, "warning", "takes 64 threads"),
    ],
)
def test_threads_are_counted_against_the_cores(monkeypatch, text, cores, counted, status, part):
    if text is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", text)
    monkeypatch.setattr(machine_hardware, "usable_cores", lambda: cores)
    monkeypatch.setattr(machine_hardware.os, "cpu_count", lambda: counted)
    (line,) = machine_hardware.threads()
    assert line.status == status and part in line.says


def test_disks_that_are_full_or_can_not_be_written(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "models"))
    free = {"runs": 0.5e9, "temporary": 5e9, "models": 50e9}
    sizes = iter(free.values())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1e12, 0, next(sizes)))
    of = [line.status for line in machine_hardware.disks()]
    assert of == ["fault", "warning", "ok"]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1e12, 0, 1e12))
    monkeypatch.setattr(machine_hardware.os, "access", lambda path, mode: False)
    assert {line.status for line in machine_hardware.disks()} == {"fault"}


@pytest.mark.parametrize(("free", "status"), [(64e6, "warning"), (0.5e9, "warning"), (2e9, "ok")])
def test_shared_memory_of_a_container(monkeypatch, free, status):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(free, 0, free))
    (line,) = machine_hardware.shared_memory()
    assert line.status == status and ("--shm-size" in line.fix) == (status != "ok")


@pytest.mark.parametrize(
    ("soft", "hard", "status"), [(1024, 8192, "warning"), (4096, 4096, "ok"), (-1, -1, "ok")]
)
def test_the_limit_of_open_files(monkeypatch, soft, hard, status):
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    (line,) = machine_hardware.open_files()
    assert line.status == status and ("ulimit -n 8192" in line.fix) == (status == "warning")


@pytest.mark.parametrize(("size", "status"), [(2e9, "warning"), (64e9, "ok"), (None, "ok")])
def test_memory(monkeypatch, size, status):
    monkeypatch.setattr(machine_hardware, "machine_memory", lambda: size)
    assert [line.status for line in machine_hardware.memory()] == [status]


def torch(cuda, *devices):
    return {"version": "2.9", "cuda": cuda, "devices": [*devices]}


def device(free=60e9, error=""):
    return {"name": "H100", "free": free, "memory": 80e9, "error": error}


@pytest.mark.parametrize(
    ("facts", "seen", "status", "part"),
    [
        (torch(""), [], "ok", "runs compute on the CPU"),
        (torch(""), [("H100", "550")], "warning", "a build for CPUs"),
        (torch("13.0"), [("H100", "470")], "fault", "(CUDA 13.0) can't use it with driver 470"),
        (torch("12.6", device()), [("H100", "550")], "ok", "H100, 60 of 80 GB free, driver 550"),
        (torch("12.6", device(free=30e9)), [("H100", "550")], "warning", "30 of 80 GB free"),
        (torch("12.6", device(error="illegal access")), [("H100", "550")], "fault", "illegal access"),
        ({"missing": True}, [], "ok", "torch is not installed; recipes of tables"),
        ({"missing": True}, [("H100", "550")], "ok", "torch is not installed, and there is H100"),
        ({"error": "libcudart.so"}, [], "fault", "torch does not import: libcudart.so"),
        ({"slow": "no answer within 20 seconds"}, [], "warning", "what torch sees is unknown: no answer"),
    ],
)
def test_a_gpu_is_checked_against_torch(monkeypatch, facts, seen, status, part):
    monkeypatch.setattr(machine_hardware, "torch_facts", lambda: facts)
    monkeypatch.setattr(machine_hardware, "gpus_of_driver", lambda: seen)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (line,) = machine_hardware.gpus()
    assert line.status == status and part in line.says
    if seen and facts.get("devices") == []:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        (line,) = machine_hardware.gpus()
        assert line.status == "ok" and "hides it" in line.says


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("raise OSError('no libcudart')", "OSError: no libcudart"),
        ("import os; os._exit(9)", "ended with code 9"),
        ("import time; time.sleep(60)", "no answer within 0.5 seconds"),
    ],
)
def test_a_torch_that_is_broken_harms_nobody(monkeypatch, tmp_path, source, part):
    (tmp_path / "torch.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(machine_hardware, "PATIENCE", 0.5 if "sleep" in source else 20)
    facts = machine_hardware.torch_facts()
    assert part in facts["slow" if "sleep" in source else "error"]


def test_torch_says_what_it_is(monkeypatch, tmp_path):
    cuda = "cuda = type('C', (), {'is_available': staticmethod(lambda: False)})"
    version = "version = type('V', (), {'cuda': None})"
    (tmp_path / "torch.py").write_text(f"__version__ = '2.9'; {cuda}; {version}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert machine_hardware.torch_facts() == {"version": "2.9", "cuda": "", "devices": []}


def test_a_sandbox_without_some_protections_or_that_fails(monkeypatch):
    Protection = namedtuple("Protection", "name active stops needs")
    rows = [Protection("a", True, "x", ""), Protection("b", False, "y", "user namespaces")]
    works = SimpleNamespace(works=True, protections=rows)
    monkeypatch.setattr(machine, "check_sandbox", lambda settings: works)
    (line,) = machine.sandbox()
    assert line.status == "warning" and line.facts["missing"] == ["b"] and "user namespaces" in line.fix
    result = SimpleNamespace(status="error", reason="", stderr="no python")
    monkeypatch.setattr(
        machine, "check_sandbox", lambda settings: SimpleNamespace(works=False, result=result)
    )
    (line,) = machine.sandbox()
    assert line.status == "fault" and "no python" in line.says

    def refuses(settings):
        raise UserError("namespaces are required")

    monkeypatch.setattr(machine, "check_sandbox", refuses)
    (line,) = machine.sandbox()
    assert line.status == "fault" and "namespaces are required" in line.says
