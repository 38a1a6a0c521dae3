"""The versions of all plugins that were used stand in every result."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

from ruamel.yaml import YAML

from coterie.core.storage.checkpoint import file_sha256
from coterie.discovery import Plugins, Report
from tests.cli.support import TABULAR, plugin_package

OBSERVES = """
from coterie import hookimpl

@hookimpl
def step_ended(step):
    pass
"""
REGISTERS = """
from coterie import hookimpl

@hookimpl
def register_rewards(register):
    register("unused", "json:loads")
"""
FILE = """
from coterie import Plugin, hookimpl


class Extra(Plugin):
    components = {"extra": "increment"}
    weights = {"extra": 1.0}
    scope = "action"
    policy_fault = 0.0

    async def score(self, view):
        return {(view.role, "extra"): 0.0}


@hookimpl
def register_rewards(register):
    register("extra", Extra)
"""
PROGRAM = """
import json, sys
from click.testing import CliRunner
from coterie.cli.main import cli

def coterie(*arguments):
    done = CliRunner().invoke(cli, arguments, prog_name="coterie")
    assert done.exit_code == 0, done.output
    return done.stdout

recipe, file, out = sys.argv[1:]
coterie("run", recipe, "-p", file, "rewards.extra={}", "schedule.steps=1", "--out", out)
evaluation = json.loads(coterie("eval", out, "--json", "--tasks", "2", "-p", file))
listed = json.loads(coterie("runs", out, "--json"))
from coterie import train
versions = dict(train(resume=out).versions)
print(json.dumps({"eval": evaluation, "runs": listed[0]["versions"], "study": versions}))
"""


def test_they_are_in_the_runs_folder_an_evaluation_a_study_and_the_list_of_runs(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    plugin_package(site, "acme-observer", OBSERVES)
    plugin_package(site, "acme-unused", REGISTERS)
    file = tmp_path / "extra_file.py"
    file.write_text(FILE)
    out = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(TABULAR), str(file), str(out)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}"},
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    digest = file_sha256(file)
    record = YAML(typ="safe").load((out / "resolved.yaml").read_text())
    assert record["versions"]["acme-observer"] == "1.2" and record["versions"]["coterie"]
    assert "acme-unused" not in record["versions"]
    assert record["plugin_files"] == {str(file): digest}
    assert results["eval"]["versions"]["acme-observer"] == "1.2"
    assert results["eval"]["plugin_files"] == {str(file): digest}
    for used in (results["runs"], results["study"]):
        assert used["acme-observer"] == "1.2"
        assert used["extra_file.py"] == f"sha256 {digest[:12]}" and re.fullmatch("[0-9a-f]{64}", digest)


def test_who_observes_is_known():
    manager = Plugins()
    manager.reports = [
        Report("a", "acme", "1", hooks=["register_rewards", "step_ended"]),
        Report("b", "b.py", "", hooks=["episode_ended"]),
        Report("c", "other", "1", hooks=["register_rewards"]),
    ]
    assert manager.observers() == {"acme", "b.py"}
