"""The public door: what `coterie` gives is listed, loads when it is used, and is all that authors import."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import coterie
import coterie.core.protocols
import coterie.core.types
import coterie.testing
from coterie.compose.kinds import CAPABILITIES, PROTOCOL

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = (ROOT / "tests" / "golden" / "public_names.txt").read_text(encoding="utf-8").split()
PAGE = (ROOT / "docs" / "public_names.md").read_text(encoding="utf-8")
DOORS = ("coterie", "coterie.testing")
FENCE = re.compile(r"^ *```(\w+)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
IMPORT = re.compile(r"(?:from|import) +(coterie[\w.]*)")
DOTTED = re.compile(r"\bcoterie\.(?:api|backends|compose|core|data|plugins|recipes|studies)\b")
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
AUTHORS_PAGES = ("writing_plugins.md", "reproduce.md", "tools.md", "sandbox.md", "runs.md", "public_names.md")
EXAMPLES = [
    *sorted((ROOT / "examples").glob("*.py")),
    *sorted((ROOT / "tests" / "packaging").glob("*/*/*.py")),
]


def sources() -> dict[str, str]:
    """Python that is shown to authors: examples, code on pages, examples in the docstrings of the kit."""
    found = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in EXAMPLES}
    for page in PAGES:
        blocks = [code for word, code in FENCE.findall(page.read_text(encoding="utf-8")) if word == "python"]
        found |= {f"{page.name} {index}": code for index, code in enumerate(blocks)}
    for path in sorted((ROOT / "coterie" / "testing").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node) or ""
                if IMPORT.search(text):
                    found[f"{path.name} {getattr(node, 'name', '')}"] = text
    return found


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    return done.stdout.strip()


def test_no_name_comes_or_goes_by_accident():
    assert sorted(coterie.__all__) == GOLDEN, "python docs/generate.py; what goes must be meant (--remove)"
    assert len(set(coterie.__all__)) == len(coterie.__all__)


@pytest.mark.parametrize("name", GOLDEN)
def test_every_name_resolves_and_is_on_the_page(name):
    assert getattr(coterie, name) is not None
    assert name == "__version__" or f"\n| `{name}` | " in PAGE


def test_every_contract_and_every_value_that_one_mentions_is_public():
    wanted = {protocol.__name__ for protocol in PROTOCOL.values()}
    wanted |= {capability.__name__ for several in CAPABILITIES.values() for capability in several}
    for package in (coterie.core.protocols, coterie.core.types):
        wanted |= {name for name, value in vars(package).items() if inspect.isclass(value)}
    assert not sorted(wanted - set(coterie.__all__))


def test_no_message_sends_authors_to_a_module_that_may_move():
    """Messages of errors, and the kit's; their `fix` is followed."""
    deep = re.compile(r"\b(?:see|a|call) coterie\.(?:core|plugins|backends|studies)\b")
    found = {
        str(path.relative_to(ROOT)): hits
        for path in (ROOT / "coterie").rglob("*.py")
        if (hits := deep.findall(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_no_name_hides_a_module():
    assert not {module.name for module in pkgutil.iter_modules(coterie.__path__)} & set(coterie.__all__)


@pytest.mark.parametrize("room", ["studies", "comlrl"])
def test_a_room_that_stands_on_the_public_names_imports_no_other_module(room):
    files = sorted((ROOT / "coterie" / room).rglob("*.py"))
    assert files
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not [alias.name for alias in node.names if alias.name.split(".")[0] == "coterie"], path
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "coterie":
                inside = f"{node.module}.".startswith(f"coterie.{room}.")
                names = {alias.name for alias in node.names}
                assert inside or (node.module == "coterie" and names <= set(coterie.__all__)), (path, names)


def test_the_map_names_the_module_of_each():
    for name, module in coterie.MODULE_OF.items():
        assert getattr(importlib.import_module(module), name) is getattr(coterie, name)


def test_a_name_that_goes_must_be_meant(monkeypatch):
    check_removed = runpy.run_path(str(ROOT / "docs" / "generate.py"))["check_removed"]
    check_removed(())
    monkeypatch.setattr(coterie, "__all__", [name for name in coterie.__all__ if name != "Task"])
    with pytest.raises(SystemExit, match=r"coterie\.Task is gone: .*--remove Task"):
        check_removed(())
    check_removed(["Task"])


def test_importing_it_is_cheap_and_a_name_loads_its_own_module():
    heavy = "[m for m in ('numpy', 'pydantic', 'torch', 'coterie.core') if m in sys.modules]"
    assert fresh(f"import sys, coterie; dir(coterie); print({heavy})") == "[]"
    assert fresh(f"import sys; from coterie import PolicyFault; print({heavy})") == "['coterie.core']"


def test_no_name_needs_torch():
    use = "[getattr(coterie, name) for name in coterie.__all__]"
    assert fresh(f"import sys, coterie; {use}; print('torch' in sys.modules)") == "False"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Taks") as error:
        _ = coterie.Taks
    assert error.value.name == "Taks" and error.value.obj is coterie  # of which Python makes "did you mean"
    with pytest.raises(ImportError, match="Taks"):
        exec("from coterie import Taks")


def test_what_authors_are_shown_imports_from_the_door_alone():
    shown = sources()
    assert len(shown) >= 10 and "__init__.py " in shown
    deep = {
        where: modules
        for where, code in shown.items()
        if (modules := [m for m in IMPORT.findall(code) if m not in DOORS])
    }
    assert deep == {}


def test_what_authors_are_shown_imports_public_names():
    for where, code in sources().items():
        for module, several, single in re.findall(
            r"from (coterie(?:\.testing)?) import (?:\(([^)]*)\)|([^\n]*))", code
        ):
            names = re.findall(r"\w+", re.sub(r"#[^\n]*", "", several or single))
            public = coterie.__all__ if module == "coterie" else coterie.testing.__all__
            assert not set(names) - set(public), where


@pytest.mark.parametrize(
    "page", ["writing_plugins.md", "reproduce.md", "tools.md", "runs.md", "public_names.md"]
)
def test_pages_for_authors_name_nothing_deeper(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert DOTTED.findall(text) == []
    named = re.findall(r"`coterie\.(\w+)", text)
    modules = {module.name for module in pkgutil.iter_modules(coterie.__path__)}
    assert not set(named) - set(coterie.__all__) - modules
