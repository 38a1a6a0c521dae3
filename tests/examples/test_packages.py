"""The packages of `examples/packages` use public names alone and are what their pyproject says."""

from __future__ import annotations

import ast
import tomllib

import pytest

from tests.packaging.support import ROOT

PACKAGES = sorted(path for path in (ROOT / "examples" / "packages").iterdir() if path.is_dir())
PUBLIC = ("coterie", "coterie.testing")
LONGEST = 160
"""Lines of a module: people copy them."""


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("project", PACKAGES, ids=lambda path: path.name)
def test_it_imports_public_names_alone_and_its_modules_are_short(project):
    modules = sorted(project.rglob("*.py"))
    assert modules
    for module in modules:
        text = module.read_text(encoding="utf-8")
        names = [name for name in imported(ast.parse(text)) if name.split(".")[0] == "coterie"]
        assert set(names) <= set(PUBLIC), f"{module}: {names}"
        if module.parent.name != "tests":
            assert len(text.splitlines()) <= LONGEST, module


@pytest.mark.parametrize("project", PACKAGES, ids=lambda path: path.name)
def test_its_pyproject_names_the_versions_and_the_module_that_states_the_api(project):
    with (project / "pyproject.toml").open("rb") as file:
        project_table = tomllib.load(file)
    (module,) = project_table["project"]["entry-points"]["coterie"].values()
    assert project_table["project"]["name"] == project.name
    assert project_table["project"]["dependencies"] == ["coterie>=0.1,<0.2"]
    assert project_table["build-system"]["build-backend"] == "hatchling.build"
    entry = (project / module / "__init__.py").read_text(encoding="utf-8")
    assert 'coterie_api = ">=1.0,<2"' in entry
    assert (project / "README.md").is_file() and list((project / "tests").glob("test_*.py"))
