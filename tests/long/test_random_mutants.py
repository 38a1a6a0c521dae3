"""The tests kill at least as many random mutants of the core as they did at the base commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.long.mutants.comparing import WANTED, compare
from tests.long.tree import ROOT

BASE = Path(__file__).with_name("mutants_base.json")


@pytest.mark.long
def test_random_mutants_are_killed_as_often_as_at_the_base(tmp_path):
    comparison = compare(BASE, tmp_path, ROOT, print)
    print(comparison)
    assert len(comparison.pairs) == WANTED, f"add what was renamed to mutants/renames.json\n{comparison}"
    assert comparison.now >= comparison.before, comparison
