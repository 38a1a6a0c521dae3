"""docs/kinds: every kind has a page with all its parts, and its statements of errors are so."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
import yaml

import coterie
from coterie import studies
from coterie.compose.kinds import CAPABILITIES, PROTOCOL, members
from coterie.core import errors
from coterie.core.plugins import KINDS

DOCS = Path(__file__).resolve().parents[1] / "docs"
SECTIONS = ("In a recipe", "Members", "Life cycle", "Concurrency", "Errors", "Check it", "Example")
EXCEPTIONS = {"asyncio.CancelledError", "click.ClickException", "OSError", "ValueError"}
"""What the pages name beside Coterie's errors."""


def page(kind: str) -> str:
    return (DOCS / "kinds" / f"{kind}.md").read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    return re.split(r"^## ", text.partition(f"\n## {title}\n")[2], flags=re.MULTILINE)[0]


def test_every_kind_has_a_page_and_no_other_has():
    assert {path.stem for path in (DOCS / "kinds").glob("*.md")} == {*KINDS, "index"}
    index = (DOCS / "kinds" / "index.md").read_text(encoding="utf-8")
    assert all(index.count(f"({kind}.md)") >= 2 for kind in KINDS)  # what I want to change; all kinds


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_has_all_sections_in_their_order_and_something_in_each(kind):
    text = page(kind)
    places = [text.index(f"\n## {title}\n") for title in SECTIONS]
    assert places == sorted(places)
    for title in SECTIONS:
        # Without generated parts: what is empty there is a test's of these.
        written = re.sub(r"<!--.*?-->", "", section(text, title), flags=re.DOTALL)
        assert len(written.split()) > 4, title
    first = text.split("\n\n")[1]
    assert 2 <= len(re.findall(r"[.:;](?:\s|$)", first)) <= 6, "what it is, and when you write one"


@pytest.mark.parametrize("kind", PROTOCOL)
def test_every_member_is_named(kind):
    text = section(page(kind), "Members")
    for name in members(PROTOCOL[kind], *CAPABILITIES.get(kind, ())):
        assert re.search(rf"(def |\b){name}\b", text), name
    for capability in CAPABILITIES.get(kind, ()):
        assert f"`{capability.__name__}`" in text


def test_the_page_on_studies_describes_every_value_that_an_author_makes_or_receives():
    text = section(page("study"), "Values")
    tables = dict(re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", text, re.M | re.S))
    public = [name for name in studies.__all__ if inspect.isclass(getattr(studies, name))]
    assert {*public, "Interval"} <= tables.keys()
    for name, table in tables.items():
        for field in dataclasses.fields(getattr(coterie, name)) if hasattr(coterie, name) else ():
            (row,) = re.findall(rf"^\| `{field.name}: .*", table, re.M)
            assert not row.endswith("|  |") or field.name in ("mean", "roles"), f"{name}: {row}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_errors_that_a_page_names_exist(kind):
    rows = [row.split(" | ")[:2] for row in section(page(kind), "Errors").splitlines() if row[:1] == "|"]
    assert len(rows) >= 3
    named = {name for row in rows for name in re.findall(r"`([\w.]*(?:Error|Fault|Exception))\b", row[-1])}
    assert {name for name in named if not hasattr(errors, name)} <= EXCEPTIONS


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_is_the_scaffolds_and_compiles(kind):
    blocks = re.findall(r'^```(\w+) title="([^"]+)"\n(.*?)^```$', section(page(kind), "Example"), re.M | re.S)
    assert blocks and blocks[0][0] == "python"
    for language, name, text in blocks:
        assert not re.search("example.?name", name + text, re.IGNORECASE)
        if language == "python":
            compile(text, name, "exec")
        elif language == "yaml":
            assert yaml.safe_load(text)
