"""Rewriting of asserts into recorded tests."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given, strategies as st

from coterie.backends.sandboxes.judging.asserts import NAME, rewrite


class Recorder:
    """Records the calls to the judge, in order."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda index, *message: self.calls.append((name, index, *message))


def executed(source):
    code, tests = rewrite(textwrap.dedent(source))
    recorder = Recorder()
    exec(code, {NAME: recorder})
    return recorder.calls, tests


def test_a_failure_is_recorded_and_what_follows_is_executed():
    calls, tests = executed("""
        assert 1 == 2, "no" + "pe"
        assert 1 / 0
        assert True
    """)
    assert calls == [("failed", 0, "nope"), ("raised", 1), ("held", 2)]
    assert [(test.line, test.source) for test in tests] == [
        (2, 'assert 1 == 2, "no" + "pe"'),
        (3, "assert 1 / 0"),
        (4, "assert True"),
    ]


def test_asserts_in_loops_functions_and_classes_see_their_names():
    calls, _ = executed("""
        def check(limit):
            for i in range(limit):
                assert i < 2
        class C:
            __private = 3
            assert __private == 3
        check(3)
    """)
    assert calls == [("held", 1), ("held", 0), ("held", 0), ("failed", 0)]


def test_a_message_that_raises_fails_its_test_only():
    assert executed("assert False or 0, 1 / 0\nassert 1")[0] == [("raised", 0), ("held", 1)]


def test_a_place_that_must_not_be_reached_says_which_function_it_is_in():
    calls, tests = executed('''
        def check():
            """Documented."""
            try:
                int("x")
                assert False
            except ValueError:
                pass
        assert check.__doc__ == "Documented."
        check()
        if 0:
            assert 0
    ''')
    assert calls == [("held", 1), ("entered", 0)]
    assert [(test.forbidden, test.inside) for test in tests] == [(True, True), (False, False), (True, False)]


def test_a_walrus_and_a_yield_stay_in_their_function():
    calls, _ = executed("""
        def numbers():
            assert (got := (yield 1)) is None
            assert got is None
        list(numbers())
    """)
    assert calls == [("held", 0), ("held", 1)]


def test_several_on_a_line_and_one_on_several_lines():
    _, tests = executed('assert "é"; assert 2\nassert (\n    3\n), """a\nb"""')
    assert [test.source for test in tests] == ['assert "é"', "assert 2", 'assert (\n    3\n), """a\nb"""']


@given(st.lists(st.booleans(), max_size=8))
def test_one_record_a_test_in_order(results):
    calls, tests = executed("\n".join(f"assert {result!r} == True" for result in results))
    assert calls == [("held" if result else "failed", i) for i, result in enumerate(results)]
    assert len(tests) == len(results)


@pytest.mark.parametrize(
    "source", ["assert (", "return 1", "x = \0", "assert " + "(" * 300 + "1" + ")" * 300]
)
def test_what_is_no_python_is_refused(source):
    with pytest.raises((SyntaxError, ValueError, RecursionError, MemoryError)):
        rewrite(source)
