"""What `coterie new` writes passes, untouched: installed, tested, checked and run in a fresh venv."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from coterie.core.plugins import KINDS
from tests.packaging.support import ROOT, FreshVenv, built

pytestmark = pytest.mark.wheels
COMMON = ("environment", "role", "reward", "estimator")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory) -> FreshVenv:
    """A venv with our wheel, and what a package's author has: pytest, and its build backend."""
    folder = tmp_path_factory.mktemp("scaffold")
    venv = FreshVenv(folder)
    venv.install(built(ROOT, folder / "wheels"), "pytest", "hatchling", "editables")
    return venv


def passes(fresh: FreshVenv, name: str, kinds: tuple[str, ...]) -> str:
    """Write a package, install it, run its tests, its check and its recipe; the output of the run."""
    options = [option for kind in kinds for option in ("--kind", kind)]
    fresh.run("coterie", "new", name, *options)
    # The backend is there already, so that no test waits for another download of it.
    fresh.run("python", "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "-e", name)
    try:
        tests = fresh.run("python", "-m", "pytest", "-q", name, check=False)
        assert tests.returncode == 0, tests.stdout
        check = fresh.run("coterie", "check", name, check=False)
        assert check.returncode == 0 and "broken" not in check.stdout, check.stdout
        run = fresh.run("coterie", "run", f"{name}-smoke", check=False)
        assert run.returncode == 0, run.stderr
        return run.stdout + run.stderr
    finally:
        fresh.run("python", "-m", "pip", "uninstall", "-q", "-y", name)


def test_a_game_with_its_team_passes_and_learns(fresh):
    assert "val success 1.00" in passes(fresh, "word-games", COMMON)


def test_a_rare_kind_passes(fresh):
    assert "val success 1.00" in passes(fresh, "coterie-steps", ("tracker",))


def test_one_file_is_checked_and_run(fresh):
    fresh.run("coterie", "new", "--file", "brevity.py", "--kind", "reward")
    assert "broken" not in fresh.run("coterie", "check", "brevity.py").stdout
    fresh.run("coterie", "run", "brevity-smoke.yaml", "-p", "brevity.py")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_kind_passes_and_all_together_within_fifteen_minutes(fresh):
    began = time.monotonic()
    for kind in KINDS:
        passes(fresh, f"only-{kind.replace('_', '-')}", (kind,))
        fresh.run("coterie", "new", "--file", f"alone_{kind}.py", "--kind", kind)
        fresh.run("coterie", "check", f"alone_{kind}.py")
        recipe = f"alone-{kind.replace('_', '-')}-smoke.yaml"
        fresh.run("coterie", "run", recipe, "-p", f"alone_{kind}.py")
    passes(fresh, "all-kinds", KINDS)
    minutes = (time.monotonic() - began) / 60
    print(f"{len(KINDS)} kinds: {minutes:.1f} minutes")
    assert minutes < 15


def test_the_templates_are_in_the_wheel(fresh):
    found = fresh.run("python", "-c", "import coterie.scaffold as s; print(s.__file__)").stdout.strip()
    ours = {path.relative_to(ROOT / "coterie" / "scaffold") for path in _templates(ROOT / "coterie/scaffold")}
    assert {path.relative_to(Path(found).parent) for path in _templates(Path(found).parent)} == ours


def _templates(folder: Path) -> list[Path]:
    caches = {"__pycache__", ".ruff_cache"}  # ruff makes one beside each pyproject.toml
    return [path for path in (folder / "templates").rglob("*.*") if not caches & set(path.parts)]
