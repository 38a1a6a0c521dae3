"""The structure: imports go down, nothing is circular, core stays small, files and functions stay short."""

from __future__ import annotations

import ast
import graphlib
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE_LINES = 7_000
FILE_LINES = 400
FUNCTION_LINES = 60
FILES = sorted((ROOT / "coterie").rglob("*.py"))


@cache
def definitions(path: Path) -> list[tuple[str, str, int, int]]:
    """The classes and functions of a file: kind, name, first and last line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        (type(node).__name__, node.name, node.lineno, node.end_lineno or 0)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_core_stays_minimal():
    sizes = {path: lines(path) for path in FILES if path.is_relative_to(ROOT / "coterie" / "core")}
    assert len(sizes) > 40, "core was found"
    assert sum(sizes.values()) <= CORE_LINES


def test_no_file_is_long():
    assert {str(path.relative_to(ROOT)): n for path in FILES if (n := lines(path)) > FILE_LINES} == {}


@pytest.mark.xdist_group("classes and functions")  # each file is parsed once
def test_no_function_is_long():
    long = {}
    for path in FILES:
        for kind, name, first, last in definitions(path):
            if kind != "ClassDef" and last - first + 1 > FUNCTION_LINES:
                long[f"{path.relative_to(ROOT)}: {name}"] = last - first + 1
    assert long == {}


@pytest.mark.xdist_group("classes and functions")
def test_no_two_classes_share_a_name():
    """`Config` and `Policy` of plugins excepted, which their kinds name."""
    places: dict[str, list[str]] = {}
    for path in FILES:
        for kind, name, first, _ in definitions(path):
            if kind == "ClassDef" and name not in ("Config", "Policy"):
                places.setdefault(name, []).append(f"{path.relative_to(ROOT)}:{first}")
    assert {name: shared for name, shared in places.items() if len(shared) > 1} == {}


def test_no_import_is_circular():
    """Over all imports: those inside functions and under TYPE_CHECKING count."""
    graph = grimp.build_graph("coterie", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert "coterie.core.training.run" in imports["coterie.core.loop"]
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError


@pytest.mark.parametrize(
    ("module", "statement", "broken"),
    [
        ("coterie/core/types/keys.py", "from coterie.core.training import run", "Inside core every import"),
        ("coterie/core/storage/jsonl.py", "import coterie.core.plugins.base", "Inside core every import"),
        ("coterie/core/config/schema.py", "import coterie.plugins.functions", "no room above it"),
        ("coterie/compose/rules/table.py", "import coterie.recipes.layers", "compose <- recipes"),
        ("coterie/plugins/functions.py", "import coterie.api.train", "api, data <- studies"),
        ("coterie/cli/output.py", "def later():\n    import coterie.cli.progress", "No circle"),
    ],
)
def test_a_contract_fails_where_an_import_goes_up(tmp_path, module, statement, broken):
    shutil.copytree(ROOT / "coterie", tmp_path / "coterie", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    source = tmp_path / module
    source.write_text(source.read_text(encoding="utf-8") + f"\n\n{statement}\n", encoding="utf-8")
    code = (
        "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports_command as run; run()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    report = " ".join(done.stdout.split())
    assert done.returncode == 1, report
    kept_or_broken = report.partition(broken)[2]
    assert kept_or_broken.find("BROKEN") < kept_or_broken.find("KEPT") or "KEPT" not in kept_or_broken, report


def test_core_imports_nothing_above_it():
    code = (
        "import sys, coterie.core.loop, coterie.core.config\n"
        "rooms = ('plugins', 'backends', 'recipes', 'compose', 'discovery', 'api')\n"
        "above = tuple(f'coterie.{room}' for room in rooms)\n"
        "assert not [name for name in sys.modules if name.startswith(above)]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


def test_every_invariant_that_is_cited_is_in_the_list():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("## Invariants\n")[2].partition("\n## ")[0]
    numbers = [int(number) for number in re.findall(r"^(\d+)\. \*\*", section, re.MULTILINE)]
    assert numbers == list(range(1, 13))
    texts = {path: path.read_text(encoding="utf-8") for path in [*FILES, *(ROOT / "tests").rglob("*.py")]}
    cited = [
        (path.relative_to(ROOT), int(number))
        for path, text in texts.items()
        for number in re.findall(r"\binvariants?\s+(\d+)", text, re.IGNORECASE)
    ]
    assert len(cited) > 10, "the citations were read"
    assert not [place for place in cited if place[1] not in numbers]
