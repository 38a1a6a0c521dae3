"""The packages of `examples/packages` as wheels in a fresh venv: tests, `coterie check`, recipes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.packaging.support import ROOT, FreshVenv, built

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(600)]

PACKAGES = sorted(path for path in (ROOT / "examples" / "packages").iterdir() if path.is_dir())
NAMES = [path.name for path in PACKAGES]
RECIPES = {
    "coterie-c3": "c3-smoke",
    "coterie-ccpo": "ccpo-smoke",
    "coterie-debate": "debate-smoke",
    "coterie-duel": "duel-first",
    "coterie-sqlite": "sqlite-smoke",
    "coterie-uct": "uct-smoke",
}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """One venv with Coterie's wheel (no extras) and all of theirs."""
    folder = tmp_path_factory.mktemp("examples")
    fresh = FreshVenv(folder)
    with ThreadPoolExecutor(2) as pool:
        wheels = pool.map(lambda project: built(project, folder / "dist"), (ROOT, *PACKAGES))
        fresh.install(*wheels, "pytest")
    return fresh


def test_every_package_is_listed_without_an_error(fresh):
    listed = {
        row["distribution"]: row for row in json.loads(fresh.run("coterie", "plugins", "--json").stdout)
    }
    assert set(NAMES) == set(RECIPES) <= set(listed)
    for name in NAMES:
        assert listed[name]["ok"], listed[name]["errors"]


@pytest.mark.parametrize("project", PACKAGES, ids=NAMES)
def test_its_tests_pass_on_the_wheel(fresh, project):
    """Its tests include the whole run of its recipe."""
    options = ("-q", "-p", "no:cacheprovider")
    tests = project / "tests"
    result = fresh.run("python", "-m", "pytest", *options, tests, check=False, timeout=300)
    assert result.returncode == 0, result.stdout[-3000:]


@pytest.mark.parametrize("name", NAMES)
def test_its_promises_are_kept(fresh, name):
    result = fresh.run("coterie", "check", name, "--json", check=False)
    assert result.returncode == 0, result.stdout[-3000:]


@pytest.mark.parametrize("name", NAMES)
def test_its_recipe_runs(fresh, name):
    fresh.run("coterie", "run", RECIPES[name], "schedule.steps=2", "--out", f"runs/{name}")
    rows = (fresh.folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == 2
