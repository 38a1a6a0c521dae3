"""Records of programming problems, and slices of their tests."""

from __future__ import annotations

import pytest

from coterie.plugins.envs.code.problem import Tests, problem_of, record_of
from tests.plugins.envs.code.problems import ADD, SUM_LINES

CHECK = """
import math

LOW = 1

def check(candidate):
    for x in range(3):
        assert candidate(x) == x + LOW
    values = [candidate(5)]
    assert values == [6]
    assert math.isclose(candidate(0.5), 1.5)
"""


def test_asserts_are_counted_where_they_stand():
    assert len(Tests(source=CHECK)) == 3
    assert len(Tests(cases=(("1", "2"), ("2", "3")))) == 2
    assert len(Tests()) == 0


@pytest.mark.parametrize(
    ("number", "kept"),
    [
        (0, ("x + LOW", "[6]", "1.5")),
        (1, ("x + LOW",)),
        (2, ("x + LOW", "[6]")),
        (-1, ("1.5",)),
        (-2, ("[6]", "1.5")),
        (9, ("x + LOW", "[6]", "1.5")),
        (-9, ("x + LOW", "[6]", "1.5")),
    ],
)
def test_a_slice_keeps_asserts_and_all_that_leads_to_them(number, kept):
    sliced = Tests(source=CHECK).sliced(number)
    asserts = [line.strip() for line in sliced.source.splitlines() if "assert" in line]
    assert len(asserts) == len(kept) and all(part in line for part, line in zip(kept, asserts, strict=True))
    assert "values = [candidate(5)]" in sliced.source and "LOW = 1" in sliced.source


def test_a_slice_of_cases():
    tests = Tests(cases=(("1", "a"), ("2", "b"), ("3", "c")))
    assert tests.sliced(1).cases == (("1", "a"),) and tests.sliced(-2).cases == (("2", "b"), ("3", "c"))


def test_a_record_and_its_problem_say_the_same():
    for record in (ADD, SUM_LINES):
        problem = problem_of(record)
        assert problem_of(record_of(problem)) == problem


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"prompt": " "}, "'prompt' is empty"),
        ({"prompt": 3}, "'prompt' is no text"),
        ({"tests": ""}, "neither 'tests'"),
        ({"tests": "x = 1"}, "'tests' has no assert"),
        ({"visible_tests": "x = 1"}, "'visible_tests' has no assert"),
        ({"entry_point": "not a name"}, "no name of a function: 'not a name'"),
        ({"entry_point": "class"}, "no name of a function"),
        ({"tests": "assert f(1"}, "is no Python"),
        ({"entry_point": ""}, "a function has an 'entry_point'"),
        ({"tests": "", "cases": [["1", "2"]]}, "a function has an 'entry_point'"),
        ({"cases": [["1", "2"]]}, "not both"),
        ({"tests": "", "entry_point": "", "cases": [["1"]]}, "case 1"),
        ({"tests": "", "entry_point": "", "cases": "12"}, "no list of pairs"),
        ({"tests": "", "entry_point": "", "cases": [["1", 2]]}, "no pair of texts"),
        ({"size_limit": 0}, "size_limit"),
        ({"size_limit": True}, "size_limit"),
        ({"size_limit": "20"}, "size_limit"),
    ],
)
def test_a_wrong_record_says_what_is_wrong(change, what):
    with pytest.raises(ValueError, match=what):
        problem_of({**ADD, **change})
