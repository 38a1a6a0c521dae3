"""Tests that a role writes: what is read as a test, and what never is."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from coterie.plugins.envs.code.problem import Tests
from coterie.plugins.envs.code.written_tests import answer_of, written_tests


def read(lines, most=10, name="f"):
    return written_tests(f"```tests\n{lines}\n```", name, most)


@pytest.mark.parametrize("line", [
    "assert f(1) == 2", "assert 2 == f(1)", "assert f([1, 2], k='a') == {'a': (1, 2)}", "assert f(0) is None",
    "assert abs(f(2.0) - 0.5) < 1e-6", "assert math.isclose(f(2), 0.5)", "assert isclose(f(2), 0.5)",
    "assert f(3) in (1, 2)", "assert not f(1)", "assert f(-1)", "assert sorted(f('ab'))[0] == 'a'",
    "assert f(*range(3)) == [0] * 3", "assert len(f(2)) == 2", "assert f(1) == -math.inf", "assert 1 < "
    "f(2) < 3",
])  # fmt: skip
def test_a_test_compares_what_the_function_returns(line):
    assert len(read(line).tests) == 1


@pytest.mark.parametrize("line", [
    "assert True", "assert 1 == 1", "assert f", "assert g(1) == 2", "assert f(1) == f(1)", "assert f(1) != 3",
    "assert f(1) or True", "assert f(1) == 2 or 1", "assert f(1) not in (2,)", "assert [f(1)] == [x for x "
    "in (1,)]",
    "assert (lambda: f(1))() == 2", "assert f(1) == open('x').read()", "assert f(1).real == 1", "assert x "
    "== f(1)",
    "assert f(exit()) == 1", "assert f(1) == __import__('os')._exit(0)", "assert f.__class__ == f(1)",
    "assert f(1) == math.__loader__", "assert (y := f(1)) == 1", "assert f'{f(1)}' == '1'",
    "for x in (1, 2):\n    assert f(x) == x", "if f(1):\n    assert f(1) == 1",
])  # fmt: skip
def test_nothing_else_is_a_test_and_it_counts_as_written(line):
    found = read(line)
    assert len(found.tests) == 0 and found.written == 1


def test_equal_tests_count_once_and_the_first_are_kept():
    found = read("assert f(1) == 2\nassert f(1)==2\nassert f(2) == 3\nassert f(3) == 4", most=2)
    assert found.tests.source == "assert f(1) == 2\nassert f(2) == 3\n" and found.written == 4


def test_statements_beside_tests_are_left_out():
    found = read("import os\nf = lambda x: 2\nos._exit(0)\ndef f(x):\n    return 2\nassert f(1) == 2")
    assert found.tests.source == "assert f(1) == 2\n"


def test_math_is_imported_where_a_test_needs_it():
    assert read("assert math.isclose(f(1), 2.0)").tests.source.startswith("import math\n")
    assert read("assert f(1) == 2").tests.source == "assert f(1) == 2\n"


def test_asserts_beside_code_are_read_without_a_block_of_tests():
    assert (
        len(written_tests("```python\ndef f(x):\n    return x\n\nassert f(1) == 1\n```", "f", 5).tests) == 1
    )
    assert len(written_tests("assert f(1) == 1\nassert f(2) == 2", "f", 5).tests) == 2
    two = "```tests\nassert f(0) == 0\n```\n```tests\nassert f(2) == 2\n```"
    assert written_tests(two, "f", 5).tests.source == "assert f(2) == 2\n", "the last block, as of code"
    both = "```tests\nassert f(0) == 0\n```\n```python\nassert f(1) == 1\n```"
    assert written_tests(both, "f", 5).tests.source == "assert f(0) == 0\n"


def test_a_test_nested_without_end_is_left_out():
    found = read(f"assert f({'-' * 5000}1) == 1\nassert f(1) == 1")
    assert len(found.tests) <= 1


@pytest.mark.parametrize("text", ["", "no tests", "```tests\nassert f(1 ==\n```", "```tests\n\x00\n```"])
def test_without_python_there_are_no_tests(text):
    found = written_tests(text, "f", 5)
    assert len(found.tests) == 0


def test_a_program_is_tested_by_pairs_of_blocks():
    text = "```input\n1 2\n```\ngives\n```output\n3\n```\n```input\n4\n```\n```output\n4\n```"
    found = written_tests(text, "", 5)
    assert found.tests.cases == (("1 2\n", "3\n"), ("4\n", "4\n")) and found.written == 2
    assert len(written_tests(text, "", 1).tests) == 1


def test_blocks_without_a_partner_are_written_and_no_tests():
    found = written_tests("```output\n1\n```\n```input\n2\n```\n```input\n3\n```\n```output\n3\n```", "", 5)
    assert found.tests.cases == (("3\n", "3\n"),) and found.written == 3


def test_of_two_outputs_for_one_input_the_first_counts():
    found = written_tests("```input\n1\n```\n```output\na\n```\n```input\n1\n```\n```output\nb\n```", "", 5)
    assert found.tests.cases == (("1\n", "a\n"),) and found.written == 2


@given(
    st.lists(st.tuples(st.integers(), st.text("ab'\"\\ `", max_size=5)), max_size=5, unique_by=lambda p: p[0])
)
def test_an_answer_of_tests_is_read_back(pairs):
    tests = Tests(source="".join(f"assert f({x}) == {text!r}\n" for x, text in pairs))
    assert written_tests(answer_of(tests), "f", 10).tests == tests


@given(st.text(max_size=200))
def test_no_text_breaks_the_reading(text):
    for name in ("f", ""):
        found = written_tests(text, name, 3)
        assert len(found.tests) <= min(3, found.written)
