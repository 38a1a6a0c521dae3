"""Split expressions, against Python's slices."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from coterie.backends.data.sets.source import WrongExpression, chosen, parse

BOUND = st.none() | st.integers(-12, 12)


@given(BOUND, BOUND, st.integers(1, 10))
def test_rows_are_those_of_a_slice(start, stop, size):
    expression = f"test[{'' if start is None else start}:{'' if stop is None else stop}]"
    rows = list(range(size))[start:stop]
    if not rows:
        with pytest.raises(WrongExpression, match="chooses no row"):
            list(chosen(expression, {"test": size}))
    else:
        assert [index for _, index in chosen(expression, {"test": size})] == rows


@given(st.integers(0, 100), st.integers(1, 60))
def test_shares_part_a_split_without_a_gap(share, size):
    cut = round(share * size / 100)
    for expression, rows in ((f"a[:{share}%]", range(cut)), (f"a[{share}%:]", range(cut, size))):
        if rows:
            assert [index for _, index in chosen(expression, {"a": size})] == list(rows)


def test_parts_are_joined_in_their_order():
    sizes = {"train": 3, "validation": 2}
    assert list(chosen("validation[1:] + train[:-1]", sizes)) == [
        ("validation", 1),
        ("train", 0),
        ("train", 1),
    ]


@pytest.mark.parametrize(
    "expression", ["", "test[", "test[1]", "test[a:b]", "test[1:2:3]", "test(:3)", "+", "test[:200%]", "[:3]"]
)
def test_what_is_no_expression_is_refused(expression):
    with pytest.raises(WrongExpression):
        parse(expression)
