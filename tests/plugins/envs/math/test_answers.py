"""The answer in a message, and plain numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from coterie.core.errors import PolicyFault
from coterie.plugins.envs.math.answers import MOST, accepted, bare, boxed, find, number, same_number, voted
from tests.plugins.envs.math.forms import RIGHT, WRONG


def test_there_are_twenty_forms_of_each_kind_and_none_is_in_both():
    assert len(RIGHT) == len(WRONG) == 20
    for answer in (0, 1, 11, 42, 137, 999):
        assert not {form(answer) for form in RIGHT.values()} & {form(answer) for form in WRONG.values()}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} and \boxed{\text{2}} then words", r"\text{2}"),
        (r"\boxed {7}", "7"),
        (r"\fbox{7}", "7"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{$42$}", "42"),
        ("The answer is 3.5.", "3.5"),
        ("the ANSWER IS: **42**", "42"),
        ("Answer: $\\frac{1}{2}$", r"\frac{1}{2}"),
        ("The answer is 4, as 2+2=4", "4"),
        ("answer is 1. No: the answer is 2", "2"),
        ("  -7/3 ", "-7/3"),
        ("x = 3", "x = 3"),
        ("$12$.", "12"),
        (r"so $\boxed 42$ it is", "42"),
        (r"\boxed{41}, no: \boxed -42", "-42"),
        (r"\boxed42", "42"),
        (r"\boxed{x \} y} z}", r"x \} y"),
        (r"I write it as \boxed. \boxed{42} is \boxed", "42"),
        ("The answer is 42.\n\nIt was hard.", "42"),
        (r"The answer is $\frac{1}{2}$, that is 1/2.", r"\frac{1}{2}"),
        (r"42\text{ cm}", r"42\text{ cm}"),
    ],
)
def test_the_answer_is_found(text: str, answer: str):
    assert find(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        r"\boxed{}",
        r"\boxed{ $ $ }",
        r"\boxed{42",
        r"\boxed{1} and then \boxed{2",
        "I think it is 42",
        "42. No, 43.",
        "42, or 43",
        "42; or 43",
        "(no) 42",
        "The answer is 42. No, 43.",
        "The answer is 42, or 43",
        "The answer is 42; or 43",
        "The answer is 42, or x",
        "The answer is x. Not y",
        "The answer is 42.\nNo, 43.",
        "The answer is x, where x is 3",
        "The answer is 42, which is 42.0",
        "1\n2",
        "The answer is",
        rf"\boxed{{{'1' * (MOST + 1)}}}",
        "7" * 65,
    ],
)
def test_a_message_without_an_answer_is_the_policy_s_fault(text: str):
    with pytest.raises(PolicyFault):
        find(text)


@given(st.text(max_size=300))
def test_any_text_has_an_answer_or_is_a_fault(text: str):
    try:
        answer = find(text)
    except PolicyFault:
        return
    assert 0 < len(answer) <= MOST


@given(st.text(alphabet="ab1\\ {}$*", max_size=40))
def test_bare_is_done_after_one_time(text: str):
    assert bare(bare(text)) == bare(text)


@given(st.integers(-(10**30), 10**30), st.integers(1, 10**9))
def test_numbers_are_exact(numerator: int, denominator: int):
    assert number(f"{numerator}/{denominator}") == Fraction(numerator, denominator)
    assert same_number(f"{numerator:+d}.0", f"{numerator:040d}")
    assert not same_number(f"{numerator + 1}", f"{numerator}")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("3 1/2", "7/2"), (r"3\frac{1}{2}", "7/2"), ("-3 1/2", "-7/2"), ("3½", "7/2"), ("31/2", "31/2")),
        *(("42.", "42"), (".5", "1/2"), ("- 7", "-7"), ("1 / 2", "1/2"), ("−5", "-5"), ("1e3", "1000")),
        *((r"1\,000", "1000"), ("1,234", "1234"), ("1{,}234", "1234"), ("1,234.5", "2469/2")),
        *(("~42", "42"), ("４２", "42"), (r"\text{42}", "42"), ("$42$", "42")),
    ],
)
def test_a_number_has_its_value_however_it_is_written(text: str, value: str):
    assert number(text) == Fraction(value)


@pytest.mark.parametrize(
    "text",
    [
        *("", "1/0", "1e555", "x", "1.2.3", "--1", "٣", "²", "nan", "1" * 200),
        *("4 2", "3 3/2", "1,23", "12,34", "1234,567", "1,234,5", "(1,234)", "1 23", "2516_8", r"42\%"),
    ],
)
def test_anything_else_is_no_plain_number(text: str):
    assert number(text) is None


def test_a_reference_may_accept_two_numbers():
    assert accepted("080 or 081 (both were accepted)") == ("080", "081")
    assert accepted("42") == ("42",)
    assert accepted("$42$") == ("42",)
    assert accepted(r"x = 1 or x = 2") == (r"x = 1 or x = 2",)  # both solutions are asked for
    assert accepted("(1, 2)") == ("(1, 2)",)


def test_the_box_of_a_solution():
    assert boxed(r"so $x=\boxed{1}$, and hence $\boxed{\frac{\pi}{2}}$.") == r"\frac{\pi}{2}"
    with pytest.raises(PolicyFault, match="there is no"):
        boxed("The answer is 42")


@given(
    st.sampled_from([*RIGHT.values(), *WRONG.values()]),
    st.sampled_from([*RIGHT.values()]),
    st.integers(0, 999),
)
def test_numbers_of_one_value_are_one_vote(first, second, value):
    answers = []
    for form in (first, second):
        try:
            answers.append(find(form(value)))
        except PolicyFault:
            return
    numbers = [number(answer) for answer in answers]
    if None not in numbers:
        assert (voted([answers[0]]) == voted([answers[1]])) == (numbers[0] == numbers[1])


def test_votes_are_of_the_last_answer_without_its_look():
    assert voted(["3", r"\frac{1}{2}"]) == voted(["0.5"]) == voted([r"\dfrac12"]) == "1/2"
    assert voted([r"-\frac{3}{4}"]) == voted(["-0.75"]) and voted([r"\frac{1}{0}"]) != voted(["0"])
    assert voted(["x + 1"]) == voted([r"$x+1$"]) != voted(["x - 1"])
    assert voted([]) is None and voted(["3", None]) is None, "an earlier answer is none of the last turn's"
