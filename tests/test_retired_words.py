"""No retired word comes back: tests/retired_words.yaml lists them, with the words in their place."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from coterie.recipes import read_yaml

pytestmark = pytest.mark.xdist_group("retired_words")  # the files are read once
ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "retired_words.yaml"
TABLE = read_yaml(LIST)
WORDS = TABLE["words"]
READ = (
    "coterie/*",
    "docs/*",
    "tests/*",
    "examples/*",
    "benchmarks/*",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
)
LEFT_OUT = ("benchmarks/results/*", "tests/golden/*.json", "tests/retired_words.yaml", "*.png", "*.pyc")
Hit = tuple[str, int, str]
"""Path, line number, the line."""


def matches(path: str, globs: Any) -> bool:
    return any(fnmatchcase(path, glob) for glob in globs)


def paths() -> list[str]:
    """The files that git tracks; of an sdist, which has no git, the files that are there."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0 and listed.stdout:
        every = listed.stdout.splitlines()
    else:
        every = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if path.is_file()]
    kept = [path for path in every if matches(path, READ) and not matches(path, LEFT_OUT)]
    return sorted(path for path in kept if "__pycache__" not in path and (ROOT / path).is_file())


@cache
def texts() -> dict[str, str]:
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in paths()}


@cache
def every_word() -> str:
    """Each word of all texts, a line each."""
    return "\n".join({word for text in texts().values() for word in re.findall(r"\w+", text)})


WITHIN_A_WORD = re.compile(r"(\\b|[\w()|?])+")
"""A pattern that matches a word or a part of one, and nothing longer."""


def title(entry: dict[str, Any]) -> str:
    return entry["pattern"] if "pattern" in entry else "assigned: " + ", ".join(entry["assigned"])


TITLES = [title(entry) for entry in WORDS]


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that a module binds, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name, node.lineno
            case ast.alias(asname=str(name)):
                yield name, node.lineno


@cache
def bound_lines(path: str) -> list[tuple[str, int]]:
    return list(bound_names(ast.parse(texts()[path])))


def lines_with(text: str, pattern: re.Pattern[str]) -> list[int]:
    """The numbers of the lines that a pattern matches in, each read alone."""
    if not pattern.search(text):  # most files, and line by line is slow
        return []
    return [number for number, line in enumerate(text.splitlines(), 1) if pattern.search(line)]


@cache
def hits(index: int) -> list[Hit]:
    """The lines that use what an entry of WORDS retires."""
    entry, retired = WORDS[index], []
    flags = re.MULTILINE | (re.IGNORECASE if entry.get("case") == "ignore" else 0)
    pattern = re.compile(entry.get("pattern", "$^"), flags)
    if WITHIN_A_WORD.fullmatch(pattern.pattern) and not pattern.search(every_word()):
        return []  # all words are fewer than all texts
    for path, text in texts().items():
        if not matches(path, entry.get("in", ["*"])):
            continue
        if "pattern" in entry:
            numbers = lines_with(text, pattern)
        else:
            numbers = sorted({number for name, number in bound_lines(path) if name in entry["assigned"]})
        lines = text.splitlines() if numbers else []
        retired += [(path, number, lines[number - 1].strip()) for number in numbers]
    return retired


@pytest.mark.parametrize("index", range(len(WORDS)), ids=TITLES)
def test_a_retired_word_is_used_only_where_it_is_allowed(index):
    entry = WORDS[index]
    allowed = {**TABLE["allowed"], **entry.get("allowed", {})}
    wrong = [hit for hit in hits(index) if not matches(hit[0], allowed)]
    folders = Counter("/".join(path.split("/")[:3]) for path, *_ in wrong)
    shown = [f"{path}:{number}: {line[:100]}" for path, number, line in wrong]
    assert not wrong, "\n".join(
        [
            f"retired: {title(entry)}",
            f"use: {entry['new']}",
            *shown,
            f"{len(wrong)} lines, by folder: "
            + ", ".join(f"{name} {count}" for name, count in folders.items()),
            "fix: use the new word; or allow the old one with its reason in tests/retired_words.yaml",
        ]
    )


@pytest.mark.parametrize("index", range(len(WORDS)), ids=TITLES)
def test_every_allowance_is_needed(index):
    entry = WORDS[index]
    used = [path for path, *_ in hits(index)]
    unused = [glob for glob in entry.get("allowed", ()) if not any(matches(path, [glob]) for path in used)]
    assert not unused, f"{title(entry)}: nothing matches in {unused} any more: remove the allowance"


def test_every_general_allowance_is_needed():
    used = {path for index in range(len(WORDS)) for path, *_ in hits(index)}
    assert not [glob for glob in TABLE["allowed"] if not any(matches(path, [glob]) for path in used)]


def test_every_entry_has_a_new_word_and_every_allowance_a_reason():
    for entry in WORDS:
        assert entry["new"] and ("pattern" in entry) != ("assigned" in entry)
        assert set(entry) <= {"pattern", "assigned", "case", "new", "in", "allowed"}
        assert all(isinstance(reason, str) and reason for reason in entry.get("allowed", {}).values())
