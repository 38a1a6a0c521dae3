"""A plugin package as users install it: a wheel in a fresh venv, with broken plugins beside it."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.packaging.support import ROOT, FreshVenv, built

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(300)]

GOOD_HOOK = "from coterie import hookimpl\n@hookimpl\ndef register_rewards(register):\n    "
BROKEN = {
    "broken-import": ("import a_library_that_is_not_there\n", "a_library_that_is_not_there"),
    "broken-hook": (
        "from coterie import hookimpl\n@hookimpl\ndef register_reward(register): pass\n",
        "did you mean 'register_rewards'",
    ),
    "broken-signature": (
        "from coterie import hookimpl\n@hookimpl\ndef register_rewards(registry): pass\n",
        "argument 'registry'",
    ),
    "broken-name": (GOOD_HOOK + "register('environment', 'json:loads')\n", "already registered by coterie"),
    "broken-raise": (GOOD_HOOK + "raise RuntimeError('boom')\n", "boom"),
}


def tiny_wheel(folder: Path, name: str, code: str) -> Path:
    """A wheel with one module, which is a plugin."""
    module = name.replace("-", "_")
    path = folder / f"{module}-1.0-py3-none-any.whl"
    info = f"{module}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{module}.py", code)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/entry_points.txt", f"[coterie]\n{module} = {module}\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A fresh venv with Coterie's wheel (no extras), the plugin's, and five broken ones."""
    folder = tmp_path_factory.mktemp("wheels")
    projects = (ROOT, ROOT / "tests" / "packaging" / "coterie-countdown")
    wheels = [built(project, folder / "dist") for project in projects]
    wheels += [tiny_wheel(folder, name, code) for name, (code, _) in BROKEN.items()]
    fresh = FreshVenv(folder)
    fresh.install(*wheels)
    return fresh


def coterie(fresh: FreshVenv, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return fresh.run("coterie", *arguments, check=check)


def test_the_plugin_is_listed_and_the_broken_ones_are_named_with_their_errors(fresh):
    listed = {row["distribution"]: row for row in json.loads(coterie(fresh, "plugins", "--json").stdout)}
    assert listed["coterie-countdown"]["ok"]
    assert listed["coterie-countdown"]["provides"]["environment"] == ["countdown"]
    for name, (_, message) in BROKEN.items():
        assert not listed[name]["ok"] and message in " ".join(listed[name]["errors"])


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
