"""Conditions on episodes: they mean what Python means by them, and run nothing."""

from __future__ import annotations

import math
import types
from contextlib import suppress

import pytest
from hypothesis import assume, example, given, strategies as st

from coterie.core.errors import UserError
from coterie.viewing.where import Value, check_names, parse, parse_sort, place

NUMBERS = ("a", "b", "r.p")
TEXTS = ("task", "stratum")

numbers = st.deferred(
    lambda: st.one_of(
        st.sampled_from(NUMBERS),
        st.integers(0, 5).map(str),
        st.floats(0, 4, allow_nan=False).map(repr),
        st.builds("({} {} {})".format, numbers, st.sampled_from("+-*/"), numbers),
        numbers.map("-{}".format),
        numbers.map("(+{})".format),
    )
)
texts = st.one_of(st.sampled_from(TEXTS), st.sampled_from(["'a'", "'ab'", "''", '"train-1"']))
conditions = st.deferred(
    lambda: st.one_of(
        st.builds("({} {} {})".format, numbers, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), numbers),
        st.builds("({} < {} <= {})".format, numbers, numbers, numbers),
        st.builds("({} {} {})".format, texts, st.sampled_from(["==", "!=", "<", "in", "not in"]), texts),
        st.builds("({} in ({}, {}))".format, numbers, numbers, numbers),
        st.builds("({} {} {})".format, conditions, st.sampled_from(["and", "or"]), conditions),
        conditions.map("(not {})".format),
        numbers,
    )
)
values = st.one_of(st.integers(-3, 3), st.floats(-3, 3))


few_texts = st.lists(st.sampled_from(["", "a", "ab", "train-1"]), min_size=2, max_size=2)


@given(conditions, st.lists(values, min_size=3, max_size=3), few_texts)
def test_a_condition_means_what_it_means_in_python(text, of_numbers, of_texts):
    assume(len(text) <= 1000)
    fields: dict[str, Value] = dict(zip(NUMBERS + TEXTS, [*of_numbers, *of_texts], strict=True))
    names = {**fields, "r": types.SimpleNamespace(p=fields["r.p"])}
    try:
        expected = eval(text, {"__builtins__": {}}, names)
    except (ZeroDivisionError, OverflowError):
        assume(False)
    assume(not (isinstance(expected, float) and math.isnan(expected)))
    try:
        condition = parse(text)
    except UserError as error:  # nested too deeply: refused, never wrong
        assume("deeply" not in error.what)
        raise
    assert condition.holds(fields) is bool(expected)


@given(conditions, st.sets(st.sampled_from(NUMBERS + TEXTS)))
def test_a_condition_with_missing_fields_never_raises(text, missing):
    assume(len(text) <= 1000)
    fields: dict[str, Value] = {name: 1 if name in NUMBERS else "a" for name in NUMBERS + TEXTS}
    try:
        parse(text).holds({**fields, **dict.fromkeys(missing)})
        parse(text).holds({name: value for name, value in fields.items() if name not in missing})
    except UserError as error:
        assert "deeply" in error.what


@given(st.text(max_size=30))
def test_any_text_is_a_condition_or_is_refused_by_a_message(text):
    try:
        condition = parse(text)
    except UserError as error:
        assert "\x1b" not in str(error) and "\n" not in error.what
        return
    with suppress(UserError):
        condition.holds({})


@pytest.mark.parametrize(
    ("text", "fields", "holds"),
    [
        ("success == 0 and turns > 2", {"success": 0.0, "turns": 3}, True),
        ("success == 0 and turns > 2", {"success": None, "turns": 3}, False),
        ("success != 0", {"success": None}, False),
        ("not success == 0", {"success": None}, True),
        ("success is None", {"success": None}, True),
        ("success is None", {"success": math.nan}, True),
        ("success is not None", {"success": 1}, True),
        ("success is None", {}, True),
        ("reward.planner < reward.executor", {"reward.planner": 0.1, "reward.executor": 0.2}, True),
        ("reward['the role'] == 1", {"reward.the role": 1}, True),
        ("return > 1 and return.planner < 0", {"return": 2, "return.planner": -1}, True),
        ("task in ('train-1', 'train-2')", {"task": "train-2"}, True),
        ("'geo' in stratum", {"stratum": "geometry"}, True),
        ("stratum not in ['a']", {"stratum": None}, False),
        ("1 / turns > 0", {"turns": 0}, False),
        ("a + b > 1", {"a": 1}, False),
        ("faults", {"faults": 0}, False),
        ("faults or lost", {"faults": 0, "lost": 2}, True),
        ("0 < turns < 3", {"turns": 2}, True),
        ("1e308 * 10 > turns", {"turns": 1}, True),
    ],
)
def test_conditions_by_hand(text, fields, holds):
    assert parse(text).holds(fields) is holds


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("__import__('os').system('touch x')", "it calls something"),
        ("().__class__.__bases__", "of something that is no field"),
        ("'a'.join", "of something that is no field"),
        ("9 ** 9 ** 9 ** 9", "it has a power"),
        ("'a' * 1000000000 == 'b'", None),
        ("[x for x in (1, 2)]", "it has a loop"),
        ("(lambda: 1)", "it defines a function"),
        ("f'{task}'", "f-string"),
        ("turns if success else 1", "it has an if"),
        ("(turns := 3)", "it assigns a name"),
        ("turns = 3", "write == for equal"),
        ("turns > ", "is no condition"),
        ("0,", "is no condition"),
        ("", "is empty"),
        ("turns == b'1'", "it has b'1'"),
        ("turns == 1j", "it has 1j"),
        ("turns % 2", "it has mod"),
        ("turns << 100000000", "it has lshift"),
        ("~turns", "it has invert"),
        ("rows[0]", "by brackets"),
        ("task == None", "write `is None`"),
        ("task is 1", "before something else than None"),
        ("task in ('a',) in ('b',)", "has a chain"),
        ("(1, 2) == turns", "has a list of values"),
        ("{1: 2}", "it has dict"),
        ("a\nb", "is no condition"),
        ("x" * 2000, "too long"),
        ("(" * 400 + "a" + ")" * 400, None),
        ("not " * 200 + "a", "nested too deeply"),
        ("-" * 900 + "a", "nested too deeply"),
        ("a" + ".b" * 450, None),
        ("\x1b[31m", "is no condition"),
    ],
)
def test_what_is_no_condition_is_refused_at_once(text, says):
    try:
        parse(text).holds({"turns": 1, "task": "a", "a": 1})
    except UserError as error:
        assert says is None or says in str(error), error
        assert "\x1b" not in str(error)
    else:
        assert says is None


def test_texts_are_not_compared_by_size_with_numbers_nor_computed_with():
    with pytest.raises(UserError, match="by size"):
        parse("task < 3").holds({"task": "a"})
    assert parse("task == 3").holds({"task": "a"}) is False
    for text in ("task + 1 > 0", "-task == 0", "task * 9 == 'aa'"):
        with pytest.raises(UserError, match="computes with the text 'a'"):
            parse(text).holds({"task": "a"})
    with pytest.raises(UserError, match="looks for '1' in 'a'"):
        parse("1 in task").holds({"task": "a"})


def test_an_order_puts_the_largest_first_and_what_is_missing_last():
    episodes = [{"advantage": value, "turns": turns} for value, turns in
                ((0.5, 1), (None, 1), (-1.0, 2), (0.5, 3), (math.nan, 1))]  # fmt: skip

    def order(text):
        keys = parse_sort(text)
        return sorted(range(5), key=lambda n: place(keys, episodes[n]))

    assert order("advantage") == [2, 0, 3, 1, 4]
    assert order("-advantage") == [0, 3, 2, 1, 4]
    assert order("-advantage, -turns") == [3, 0, 2, 1, 4]
    assert order("turns - advantage") == [0, 3, 2, 1, 4]
    words = [{"task": word} for word in ("b", "ab", "a", "")]
    assert sorted(range(4), key=lambda n: place(parse_sort("task"), words[n])) == [3, 2, 1, 0]
    assert sorted(range(4), key=lambda n: place(parse_sort("-task"), words[n])) == [0, 1, 2, 3]
    assert place(parse_sort("9" * 400), {}) == ((0, math.inf, ()),)


@example(["a", "a\x00"])
@given(st.lists(st.text(max_size=4), max_size=6))
def test_texts_are_sorted_as_python_sorts_them(words):
    for text, reverse in (("task", False), ("-task", True)):
        keys = parse_sort(text)
        found = sorted(words, key=lambda word: place(keys, {"task": word}))
        assert found == sorted(words, reverse=reverse)


def test_a_field_that_no_episode_has_is_told_with_the_nearest_names():
    condition = parse("sucess == 0 and reward.plannr > 0 or turns > 1")
    assert set(condition.names) == {"turns", "reward.plannr", "sucess"}
    with pytest.raises(UserError) as error:
        check_names(["sucess"], ["success", "turns", "reward.planner"])
    assert "did you mean success" in error.value.fix and "reward.planner, success, turns" in error.value.why
    check_names(["turns"], ["turns"])


@pytest.mark.parametrize("text", ["", "reward desc", "-"])
def test_an_order_that_is_none_speaks_of_an_order(text):
    with pytest.raises(UserError, match="is no order") as refused:
        parse_sort(text)
    assert "-advantage" in refused.value.fix
