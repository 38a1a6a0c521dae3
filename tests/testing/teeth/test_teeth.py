"""The kit has teeth: each mutant is told, by what its promise or its member is, and no original is."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.kit_teeth import LEAST, RESULTS, summary, tried
from coterie.compose.kinds import PROTOCOL
from tests.testing.teeth.mutants import OPERATORS, Mutant, mutants
from tests.testing.teeth.originals import SLOW, complaint, edited, load

ALL = mutants()
FIRST = {mutant.kind: mutant for mutant in reversed(ALL)}
KINDS = sorted({*PROTOCOL, "recipe", "overlay", "column", "study", "command"})


def test_there_are_mutants_of_every_kind_and_operator():
    assert sorted(FIRST) == KINDS and len(KINDS) == 21
    of_kind, of_operator = (Counter(getattr(each, at) for each in ALL) for at in ("kind", "operator"))
    assert min(of_kind.values()) >= 3
    assert set(of_operator) == set(OPERATORS) and len(OPERATORS) >= 12
    assert len({(each.kind, each.edits, each.without) for each in ALL}) == len(ALL)
    assert all(each.promise and each.told for each in ALL)


def test_every_mutant_is_of_its_example_as_it_is():
    for each in ALL:
        assert edited(each.kind, each.edits, each.file)


@pytest.mark.parametrize("kind", KINDS)
def test_no_original_is_told(kind, tmp_path):
    assert complaint(load(kind, tmp_path), kind, tmp_path) == ""


@pytest.mark.sandbox
@pytest.mark.parametrize("kind", SLOW)
def test_no_original_that_runs_programs_is_told(kind, tmp_path):
    SLOW[kind](load(kind, tmp_path), tmp_path)


def told(mutant: Mutant, folder: Path) -> None:
    assert mutant.told in tried(mutant, folder), str(mutant)


@pytest.mark.parametrize("mutant", FIRST.values(), ids=str)
def test_a_mutant_of_each_kind_is_told(mutant, tmp_path):
    told(mutant, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("mutant", [each for each in ALL if each is not FIRST[each.kind]], ids=str)
def test_every_other_mutant_is_told(mutant, tmp_path):
    told(mutant, tmp_path)


def test_the_committed_results_are_of_these_mutants():
    stored = json.loads(RESULTS.read_text())
    assert {(row["kind"], row["operator"], row["promise"]) for row in stored["mutants"]} == {
        (each.kind, each.operator, each.promise) for each in ALL
    }
    assert stored["summary"] == summary(stored["mutants"], stored["originals_told"])
    assert stored["summary"]["caught"] >= LEAST and not stored["originals_told"]
