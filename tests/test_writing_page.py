"""docs/writing.md: its commands resolve, and its tables are what the code has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from coterie.backends.data.shipped import Posts
from coterie.plugins.envs.writing.measures import FORMS
from coterie.plugins.rewards.reports import LEVELS
from coterie.recipes import load

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "writing.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip(" `") for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| `")
]


@pytest.mark.parametrize("line", re.findall(r"^coterie run ([^\n]+)", PAGE, re.MULTILINE))
def test_commands_resolve(line):
    recipe, *overrides = shlex.split(line, comments=True)
    scale = overrides[1] if overrides[:1] == ["--scale"] else None
    assert load(recipe, overrides=overrides[2 * bool(scale) :], scale=scale).config.env["type"] == "writing"


def test_the_levels_have_the_weights_and_ranges_of_the_code():
    rows = {row[0]: row[1:] for row in ROWS if row[0] in LEVELS}
    assert {name: float(row[0]) for name, row in rows.items()} == dict(LEVELS)
    for column, form in ((2, FORMS["tldr"]), (3, FORMS["arxiv"])):
        numbers = {
            name: [float(n) for n in re.findall(r"\.?\d+(?:\.\d+)?", row[column])]
            for name, row in rows.items()
        }
        length, vocabulary = form.length, form.vocabulary
        assert numbers["structure"] == [form.least, form.most]
        assert numbers["length"] == [length.low, length.high, length.lowest, length.highest]
        ends = [vocabulary.low, vocabulary.high, vocabulary.lowest, vocabulary.highest]
        assert numbers["vocabulary"] == [end for end in ends if end != float("inf")]
        assert numbers["style"] == [form.overlap]


def test_the_fields_are_those_of_a_record():
    assert [row[0] for row in ROWS if len(row) == 2] == ["id", "prompt", "title", "reference"]


def test_our_posts_are_as_many_as_it_says():
    source = Posts(Posts.Config(), None)
    count = sum(len(source.records(split)) for split in ("train", "val", "test"))
    assert f"`data: posts` are {count} short stories" in PAGE
