"""A plugin package as users install it: a wheel in a fresh venv, with eleven broken plugins beside it."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.packaging.support import ROOT, FreshVenv, built

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(300)]

HOOK = "from coterie import hookimpl\n\n\n@hookimpl\ndef register_rewards(register):\n    "
RAISES = """\
from coterie import Plugin, hookimpl


class Raises(Plugin):
    components = {"raises": "increment"}
    weights = {"raises": 1.0}
    scope = "action"
    policy_fault = 0.0

    async def score(self, view):
        return {(view.role, "raises"): 1 / 0}


@hookimpl
def register_rewards(register):
    register("raises", Raises)
"""
LEAKY = """\
from coterie import TEAM, Plugin, Step, Task, hookimpl


class Leaky(Plugin):
    roles = ()
    components = {"right": "increment"}
    weights = {}

    def tasks(self, split, seed):
        return [Task(id=f"{split}-{n}", payload=3) for n in range(8)]

    def reset(self, task, seed):
        return [task.payload]

    def acting_roles(self, state):
        return () if state[0] == 0 else None

    def observe(self, state, role):
        return state[0]

    async def step(self, state, actions, ctx):
        state[0] -= 1
        return Step(state=state, scores={(TEAM, "right"): 1.0})

    def outcome(self, state):
        return {"success": float(state[0] == 0)}


@hookimpl
def register_environments(register):
    register("leaky", Leaky)
"""
SLOW = """\
import os
import time

from coterie import hookimpl

time.sleep(float(os.environ.get("SECONDS_OF_IMPORT", "0")))


@hookimpl
def register_rewards(register):
    register("slow", "json:loads")
"""
BROKEN = {
    "broken-import": ("import a_library_that_is_not_there\n", "No module named", "pip install the package"),
    "broken-exit": ("import sys\n\nsys.exit(3)\n", "SystemExit: 3 (", "in the package, call sys.exit under"),
    "broken-signature": (
        "from coterie import hookimpl\n\n\n@hookimpl\ndef register_rewards(registry):\n    pass\n",
        "argument 'registry'",
        "write `def register_rewards(register)`",
    ),
    "broken-hook": (
        "from coterie import hookimpl\n\n\n@hookimpl\ndef register_reward(register):\n    pass\n",
        "unknown hook 'register_reward': did you mean 'register_rewards'?",
        "rename the function",
    ),
    "broken-name": (
        HOOK + "register('environment', 'json:loads')\n",
        "already registered by coterie",
        "choose another name, or select it as 'broken-name:environment'",
    ),
    "broken-raise": (
        HOOK + "raise RuntimeError('boom')\n",
        "hook 'register_rewards' raised RuntimeError: boom (",
        "correct the hook",
    ),
    "broken-api": (
        f'coterie_api = ">=7,<8"\n{HOOK}raise RuntimeError("its hooks are called")\n',
        "written for version >=7,<8 of Coterie's plugin API, and this Coterie (0.1.0) has 1.0",
        "update Coterie: pip install -U coterie",
    ),
}
"""Name -> (code, what is said, the fix) of those that can't work at all."""
LATER = {
    "broken-run": RAISES,
    "broken-state": LEAKY,
    "broken-slow": SLOW,
    "broken-extra": HOOK + 'register("needy", "json:loads", config="broken_extra_config:Config")\n',
}
"""Those that load: what is wrong shows when they are used, or when they take long."""


def tiny_wheel(folder: Path, name: str, code: str) -> Path:
    """A wheel with one module, which is a plugin; of broken-extra with a module of its Config."""
    module = name.replace("-", "_")
    path = folder / f"{module}-1.0-py3-none-any.whl"
    info = f"{module}-1.0.dist-info"
    needs = "Provides-Extra: fast\nRequires-Dist: fast-library; extra == 'fast'\n"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{module}.py", code)
        wheel.writestr(f"{module}_config.py", "import fast_library\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/entry_points.txt", f"[coterie]\n{module} = {module}\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A fresh venv with Coterie's wheel (no extras), the plugin's, and eleven broken ones."""
    folder = tmp_path_factory.mktemp("wheels")
    projects = (ROOT, ROOT / "tests" / "packaging" / "coterie-countdown")
    wheels = [built(project, folder / "dist") for project in projects]
    broken = {name: code for name, (code, _, _) in BROKEN.items()} | LATER
    wheels += [tiny_wheel(folder, name, code) for name, code in broken.items()]
    fresh = FreshVenv(folder)
    fresh.install(*wheels)
    return fresh


def coterie(fresh: FreshVenv, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return fresh.run("coterie", *arguments, check=check)


def test_the_plugin_is_listed_and_the_broken_ones_are_named_with_their_errors(fresh):
    listed = {row["distribution"]: row for row in json.loads(coterie(fresh, "plugins", "--json").stdout)}
    assert listed["coterie-countdown"]["ok"]
    assert listed["coterie-countdown"]["provides"]["environment"] == ["countdown"]
    for name, (_, message, fix) in BROKEN.items():
        errors = " ".join(listed[name]["errors"])
        assert not listed[name]["ok"] and message in errors and f"fix: {fix}" in errors
        assert "its hooks are called" not in errors
    assert all(listed[name]["ok"] for name in LATER)
    for name in ("broken-exit", "broken-raise"):
        assert f"{name.replace('-', '_')}.py, line " in " ".join(listed[name]["errors"])


def test_an_import_that_takes_long_is_told_while_it_lasts_and_afterwards(fresh, monkeypatch):
    monkeypatch.setenv("SECONDS_OF_IMPORT", "6")
    monkeypatch.setenv("COTERIE_PLUGINS", "broken-slow,coterie-countdown")
    done = coterie(fresh, "plugins")
    assert "plugin 'broken_slow' of broken-slow has been importing for 5 s" in done.stderr
    assert "broken_import,broken_name" in done.stderr or "the names of the others" in done.stderr
    assert "warning: its import took 6 s" in done.stdout and 'register "module:attribute"' in done.stdout


def test_a_reward_that_raises_in_a_run_is_named_with_its_method_file_and_line(fresh):
    arguments = ("countdown", "rewards.raises={}", "schedule.steps=1", "--out", "raised")
    done = coterie(fresh, "run", *arguments, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "reward 'raises' of broken-run: score raised ZeroDivisionError: division by zero (" in done.stderr
    assert "broken_run.py, line 11)" in done.stderr and "fix: repair the cause" in done.stderr


def test_a_config_that_needs_another_package_is_told_with_its_plugin_and_what_to_install(fresh):
    done = coterie(fresh, "run", "countdown", "rewards.needy={}", "--out", "never", check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "the Config of reward 'needy' of broken-extra can't be imported" in done.stderr
    assert "No module named 'fast_library'" in done.stderr
    assert "fix: pip install 'broken-extra[fast]'" in done.stderr
    shown = coterie(fresh, "plugins", "show", "needy").stdout
    assert "fix: pip install 'broken-extra[fast]'" in shown


def test_a_state_that_is_changed_in_place_is_told_by_the_kit(fresh):
    code = (
        "from coterie.testing import build, check_environment\n"
        "check_environment(build('environment', 'leaky'), roles=['counter'], act=lambda *given: '2')\n"
    )
    done = fresh.run("python", "-c", code, check=False)
    assert "Leaky.step: a state that one branch reached changed when a sibling was stepped" in done.stderr
    assert "fix: states are values" in done.stderr


def test_a_run_uses_its_environment_role_reward_and_estimator(fresh):
    coterie(fresh, "run", "countdown", "--out", "out")
    rows = [json.loads(line) for line in (fresh.folder / "out" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 60
    assert rows[0]["sign/credited"] > 0 and rows[0]["score/counter/brief"] is not None
    assert rows[-1]["eval/success"] > 0.9 > rows[0]["success_committed"]


def test_its_recipe_and_its_command_are_listed(fresh):
    assert "countdown" in {row["name"] for row in json.loads(coterie(fresh, "recipes", "--json").stdout)}
    assert coterie(fresh, "countdown").stdout == "3 2 1 0\n"


def test_without_extras_an_error_names_the_extra_to_install(fresh):
    result = coterie(fresh, "run", "quickstart", "--out", "never", check=False)
    assert result.returncode == 2 and "coterie[torch]" in result.stderr and "Traceback" not in result.stderr
    assert not (fresh.folder / "never").exists()
