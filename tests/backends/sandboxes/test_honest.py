"""Honest programs have the outcome of plain CPython, but for the limits that docs/sandbox.md names."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.backends.sandboxes import honest_programs
from tests.backends.sandboxes.honest import compare, judged, programs
from tests.backends.sandboxes.honest_functions import FAMILIES, LIMITED, human_eval

ROOT = Path(__file__).parents[3]
RESULT = ROOT / "benchmarks" / "results" / "honest.json"
PAGE = (ROOT / "docs" / "sandbox.md").read_text(encoding="utf-8")


def differences(count: int, functions: int, problems: int) -> tuple[list[object], int]:
    """What differs and is no documented limit, and the number of programs."""
    results = compare(programs(count), judged(functions, problems))
    for result in results:
        if result.part == "limit":
            assert result.passed and not result.agrees, f"it is no limit any more: {result}"
    return [result for result in results if not result.agrees and result.part != "limit"], len(results)


def test_a_sample_of_honest_programs() -> None:
    differ, count = differences(len(honest_programs.FAMILIES), len(FAMILIES), 8)
    assert differ == []
    assert count >= (140 if human_eval() else 120)


@pytest.mark.long
def test_a_thousand_honest_programs() -> None:
    differ, count = differences(480, 230, 164)
    assert differ == []
    assert count >= (1000 if human_eval() else 700)


def test_the_committed_result_is_of_a_thousand_programs_and_of_these_families() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    assert result["programs"] >= 1000 and result["differ"] == []
    assert set(result["limits"]) == set(LIMITED)
    assert set(result["families"]) == {*honest_programs.FAMILIES, *FAMILIES, *LIMITED, "canonical", "mutated"}
    assert sum(row["programs"] for row in result["families"].values()) == result["programs"]


def test_the_page_names_every_limit() -> None:
    section = PAGE.partition("## Limits of the judge")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| .+ \|$", section, re.MULTILINE)
    assert Counter(rows[1:]) == Counter([*LIMITED])
