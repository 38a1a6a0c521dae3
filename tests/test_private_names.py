"""Tests say behaviour: none calls, imports or patches a private name of coterie."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEFINED = re.compile(r"(?:\bdef |\bclass |\bself\.|^)(_[A-Za-z]\w*)", re.MULTILINE)
NAMED = re.compile(
    r"""\._[A-Za-z]|import [^\n]*\b_[A-Za-z]|^\s+_[A-Za-z]\w*,|["'][\w.]*\b_[A-Za-z]\w*["']""", re.MULTILINE
)
"""What most files don't have, so that they need not be parsed."""
ELSEWHERE = {
    "_asdict": "of named tuples",
    "_make": "of named tuples",
    "_fields": "of named tuples",
    "_replace": "of named tuples",
    "_exit": "of os",
    "_version": "of a tensor",
    "_attn_implementation": "of transformers' configurations",
}
"""What coterie defines too: whose it is in tests."""


def private_names(text: str) -> Iterator[tuple[int, str]]:
    """The private names of others that a test module calls, imports or patches, with their lines."""
    nodes = [*ast.walk(ast.parse(text))]
    mine = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    mine |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and _of_self(node)}
    for node in nodes:
        names = []
        if isinstance(node, ast.Attribute) and not _of_self(node):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("coterie"):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("setattr", "delattr"):
            values = [each.value for each in node.args if isinstance(each, ast.Constant)]
            names = [value.rpartition(".")[2] for value in values if isinstance(value, str)]
        for name in names:
            if name.startswith("_") and not name.startswith("__") and name not in mine:
                yield node.lineno, name


def _of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def test_no_test_calls_imports_or_patches_a_private_name():
    files = (ROOT / "coterie").rglob("*.py")
    defined = {name for file in files for name in DEFINED.findall(file.read_text(encoding="utf-8"))}
    assert {"_reached", "_stops"} <= defined, "functions and attributes were found"
    private = {
        f"{file.relative_to(ROOT)}:{line}": name
        for file in sorted((ROOT / "tests").rglob("*.py"))
        if NAMED.search(text := file.read_text(encoding="utf-8"))
        for line, name in private_names(text)
        if name in defined and name not in ELSEWHERE
    }
    assert private == {}


def test_each_form_is_seen():
    text = textwrap.dedent("""
        from coterie.api.run import _imported
        class Mine:
            def look(self):
                self._kept = run._called
                return self._kept, other._kept
        monkeypatch.setattr(run, "_patched", 1)
        monkeypatch.setattr("coterie.api.run._named", 1)
    """)
    assert [name for _, name in private_names(text)] == ["_imported", "_patched", "_named", "_called"]
