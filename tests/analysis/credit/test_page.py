"""docs/credit.md says what the command prints and what the rules are."""

from __future__ import annotations

import re
from pathlib import Path

from coterie.analysis.credit import component_returns, free_riders
from coterie.cli.commands import credit

PAGE = (Path(__file__).parents[3] / "docs" / "credit.md").read_text(encoding="utf-8")
EXPLAINED = {
    part.strip() for row in re.findall(r"^\| ([^|]+) \|", PAGE, re.MULTILINE) for part in row.split(",")
} | {"role", "turn", "actions", "component", "weight", "mean", "missing", "states"}  # their names say it


def test_every_column_stands_in_the_example_and_is_explained():
    for head in (credit.TURNS, credit.COMPONENTS, credit.EFFECTS):
        line = re.escape(head[0]) + "".join(rf" +{re.escape(name)}" for name in head[1:])
        assert re.search(f"^{line}$", PAGE, re.MULTILINE), head
        assert set(head) <= EXPLAINED, set(head) - EXPLAINED


def test_the_bounds_of_the_rules_are_those_of_the_code():
    assert free_riders.SELDOM == 1 / 5 and "less than a fifth as often" in PAGE
    assert free_riders.OF_EQUAL_SHARE == 1 / 4 and "a quarter of an equal share" in PAGE
    assert free_riders.LEAST_PROMPTS == 20 and "Twenty comparisons" in PAGE
    assert component_returns.LEAST_SCORES == 32 and "32 or more" in PAGE
