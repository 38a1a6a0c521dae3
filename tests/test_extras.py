"""An extra has code: some module imports each package that it brings, and nothing speaks of another extra."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import requires
from pathlib import Path

import pytest

from coterie.extras import EXTRA_OF

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
TOOLING = {"dev", "docs", "browser"}
"""For the repository: tests, lint and pages. No module of the package needs them."""
BROUGHT = {
    "tokenizers": "transformers",
    "huggingface_hub": "transformers",
    "httpx2": "mcp",
    "requests": "opentelemetry_exporter_otlp_proto_http",
    "pydantic_core": "pydantic",
    "latex2sympy2_extended": "math_verify",
    "sympy": "latex2sympy2_extended",
}
"""Imported packages that another one brings."""
NAMES = {
    "google_genai": "google",
    "scikit_learn": "sklearn",
    "mlflow_skinny": "mlflow",
    "opentelemetry_sdk": "opentelemetry",
    "opentelemetry_exporter_otlp_proto_http": "opentelemetry",
}
"""Distributions that are imported by another name."""
KIT = {"pytest"}
"""What the conformance kit's fixtures import: they run in a plugin author's tests."""
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "Makefile", "constraints.txt", "pyproject.toml")
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "coterie").rglob("*.py")),
    *sorted((ROOT / "coterie").rglob("*.yaml")),
]


def name_of(requirement: str) -> str:
    """The name by which a requirement's package is imported."""
    distribution = re.match(r"[\w.-]+", requirement)
    assert distribution is not None
    name = distribution[0].replace("-", "_").split(".")[0].lower()
    return NAMES.get(name, name)


def parts_of(extra: str) -> list[str]:
    """The extras that an extra is made of; none: it names packages itself."""
    return [
        part
        for entry in EXTRAS[extra]
        for match in re.findall(r"^coterie\[(.*)\]$", entry)
        for part in match.split(",")
    ]


PLAIN = {name for name in EXTRAS if name not in TOOLING and not parts_of(name)}


@cache
def imported() -> frozenset[str]:
    """The top-level names of all third-party modules that the package imports, functions included."""
    names: set[str] = set()
    for path in (ROOT / "coterie").rglob("*.py"):
        if {"inside", "templates"} & {*path.parts}:  # runs in a sandbox's process; code of a new package
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names.add(node.module.split(".")[0])
    return frozenset(names - sys.stdlib_module_names - {"coterie"})


@pytest.mark.parametrize("extra", sorted(PLAIN))
def test_some_module_imports_each_package_of_an_extra(extra: str):
    packages = {name_of(requirement) for requirement in EXTRAS[extra]}
    assert packages and packages <= imported(), f"no module imports {packages - imported()}"
    assert packages <= set(EXTRA_OF), "an error for the missing package names the extra"


def test_the_packages_of_extras_are_those_that_errors_name():
    assert set(EXTRA_OF.values()) == PLAIN
    for package, extra in EXTRA_OF.items():
        brought = BROUGHT.get(package, package)
        assert package in imported() and brought in map(name_of, EXTRAS[extra]), package


def test_every_import_is_of_a_dependency_or_of_an_extra():
    required = {name_of(requirement) for requirement in PROJECT["project"]["dependencies"]}
    template = {"example_module"}  # what `coterie new` puts a package's name for
    assert imported() - set(EXTRA_OF) - set(BROUGHT) - KIT - template == required


@pytest.mark.parametrize(("package", "by"), BROUGHT.items())
def test_what_a_package_brings_it_requires(package: str, by: str):
    try:
        names = {name_of(requirement) for requirement in requires(by) or ()}
    except ImportError:
        pytest.skip(f"{by} is not installed")
    assert package in names


def test_extras_of_extras_exist():
    for extra in set(EXTRAS) - TOOLING - PLAIN:
        assert set(parts_of(extra)) <= PLAIN, extra
    assert {*parts_of("all"), *parts_of("scale")} == PLAIN


def test_markers_of_extras_exist():
    markers = PROJECT["tool"]["pytest"]["ini_options"]["markers"]
    named = re.findall(r"needs the `(\w+)` extra", " ".join(markers))
    assert named and set(named) <= PLAIN


def test_packages_that_the_type_check_skips_are_imported():
    skipped = [table["module"] for table in PROJECT["tool"]["mypy"]["overrides"] if "follow_imports" in table]
    [modules] = skipped
    assert {module.removesuffix(".*") for module in modules} <= imported()


def test_nothing_names_an_extra_that_is_gone():
    named = {
        (path.name, extra)
        for path in PAGES
        for group in re.findall(r"coterie\[([\w, ]+)\]", path.read_text(encoding="utf-8"))
        for extra in re.split(r", *", group)
    }
    assert {extra for _, extra in named} >= {"torch", "data", "mcp"}
    assert {(page, extra) for page, extra in named if extra not in EXTRAS} == set()


@pytest.mark.parametrize(
    "setting", ["engine=sglang", "trackers={mine: {type: comet}}", "executor=slurm", "trainer=megatron"]
)
def test_a_plugin_that_nobody_built_is_unknown_and_names_no_extra(setting: str):
    from tests.cli.support import coterie

    done = coterie("config", "plan_path", setting)
    assert done.exit_code == 2 and "known: " in done.stderr, done.output
    assert "coterie[" not in done.stderr
