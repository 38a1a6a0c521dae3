"""Programs against the judge: none of them passes a single test, and an honest program passes all."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.backends.sandboxes.judging.hostile import HONEST, PROGRAMS, TESTS, TOTAL
from tests.backends.sandboxes.judging.support import by_pair, judged

PAGE = Path(__file__).parents[4] / "docs" / "sandbox.md"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_hostile_program_is_judged_failed(program):
    before = time.monotonic()
    verdict = by_pair(judged(program.code, TESTS))
    assert verdict.total == TOTAL
    assert (verdict.ok, verdict.passed) == (False, 0), verdict
    assert time.monotonic() - before < 10


def test_the_honest_program_passes_the_same_tests():
    verdict = by_pair(judged(HONEST, TESTS))
    assert verdict.ok and verdict.passed == TOTAL and not verdict.candidate


def test_the_page_says_which_protection_stops_which():
    documented = re.findall(r"^\| (.+?) \| judge: (.+?) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert documented == [(program.name, program.protection) for program in PROGRAMS]
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS) >= 20
