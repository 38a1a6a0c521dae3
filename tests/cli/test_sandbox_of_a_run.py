"""What a run's sandbox lacks on this machine is refused before the run's folder is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.api.run_record import read_record
from coterie.backends.sandboxes import programs
from tests.cli.support import TABULAR, coterie

TOOL = ("tools.python.type=python", "team.roles.executor.tools=[python]", "tools.python.sandbox.type=local")


def test_a_package_that_is_not_there(tmp_path: Path) -> None:
    packages = "tools.python.sandbox.packages=[nunpy]"
    done = coterie("run", TABULAR, *TOOL, packages, "--out", tmp_path / "run")
    assert done.exit_code == 2 and "tools.python.sandbox.packages: no distribution 'nunpy'" in done.stderr
    assert "did you mean 'numpy'?" in done.stderr and not (tmp_path / "run").exists()


def test_programs_that_do_not_fit_into_memory_with_the_limits_of_a_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "machine_memory", lambda: 8 << 30)
    more = ("tools.python.sandbox.workers=3", "tools.python.limits.memory_mb=3000")
    done = coterie("run", TABULAR, *TOOL, *more, "--out", tmp_path / "run")
    assert (
        done.exit_code == 2 and "tools.python.limits: 3 programs at a time may take 9,096 MB" in done.stderr
    )
    assert "set tools.python.sandbox.workers to at most 2" in done.stderr and not (tmp_path / "run").exists()
    on_others = coterie("config", TABULAR, *TOOL, *more)  # a configuration is no run
    assert on_others.exit_code == 0, on_others.output


def test_the_record_has_the_versions_of_what_programs_import(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    packages = f"tools.python.sandbox.packages=['pluggy>=1', pydantic, {tmp_path}/mine]"
    few = ("schedule.steps=1", "tools.python.sandbox.workers=1")
    done = coterie("run", TABULAR, *TOOL, packages, *few, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    record = read_record(tmp_path / "run")
    assert record is not None and {"pluggy", "pydantic"} <= {*record.versions}
