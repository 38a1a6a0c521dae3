"""The pages on architecture and plugins are what the code is; what they show runs."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import coterie.testing
from coterie.core.config import MAPS, TABLES
from coterie.core.plugins import GROUP, KINDS, hookspecs
from coterie.core.training.builder import PROTOCOL

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "writing_plugins.md"
BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def hooks_table() -> str:
    """Every hook, with its signature and the first sentence of its docstring."""
    rows = ["| hook | what it is for |", "|---|---|"]
    for name, value in vars(hookspecs).items():
        if inspect.isfunction(value) and hasattr(value, "coterie_spec"):
            signature = str(inspect.signature(value)).replace("'", "")
            rows.append(f"| `{name}{signature}` | {' '.join((value.__doc__ or '').split())} |")
    return "\n".join(rows)


def kinds_table() -> str:
    """Every kind: where a configuration names it, its Protocol, its check."""
    where = {kind: f"`{table}`" for table, kind in TABLES.items()}
    where |= {kind: f"`{table}.<name>`" for table, kind in MAPS.items()} | {"role": "`team.roles.<name>`"}
    rows = ["| kind | in a recipe | Protocol | check |", "|---|---|---|---|"]
    for kind in KINDS:
        protocol = f"`{PROTOCOL[kind].__name__}`" if kind in PROTOCOL else "–"
        check = f"check_{kind}" if f"check_{kind}" in coterie.testing.__all__ else "check_plugin"
        rows.append(f"| {kind} | {where.get(kind, '–')} | {protocol} | `{check}` |")
    return "\n".join(rows)


@pytest.mark.parametrize("table", [hooks_table, kinds_table])
def test_every_hook_and_kind_is_documented_exactly(table):
    assert table() in PAGE.read_text(encoding="utf-8"), f"in {PAGE.name}, put this:\n{table()}"


def test_every_check_is_named_by_the_page():
    page = PAGE.read_text(encoding="utf-8")
    for name in coterie.testing.__all__:
        assert f"`{name}`" in page or f"{name}(" in page, name


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's files in a folder."""
    folder = tmp_path_factory.mktemp("page")
    for name, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def ran(folder: Path, *words: str) -> str:
    found = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def test_the_example_passes_its_own_tests(example):
    assert "5 passed" in ran(example, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_countdown.py")


def test_the_example_trains(example):
    command = "from coterie.cli.main import main; main()"
    words = ["run", "countdown.yaml", "-p", "countdown.py", "--out", "out"]
    said = ran(example, "-c", command, *words)
    share = re.search(r"val success ([.\d]+)", said)
    assert share and float(share[1]) > 0.9, said


def test_the_example_package_is_found_by_its_entry_point(example):
    table = tomllib.loads((example / "pyproject.toml").read_text())
    assert list(table["project"]["entry-points"]) == [GROUP]


def test_every_file_that_the_architecture_names_exists():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = {word for word in re.findall(r"`([\w./]+)`", text) if "/" in word or word.endswith(".py")}
    assert len(named) > 15
    missing = [word for word in named if not any((base / word).exists() for base in (ROOT, ROOT / "coterie"))]
    assert not missing, missing
