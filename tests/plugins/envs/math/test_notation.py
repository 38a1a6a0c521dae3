"""One spelling of an answer, and what is compared before its value."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, strategies as st

from coterie.plugins.envs.math.answers import MOST
from coterie.plugins.envs.math.notation import AnswerComparison, comparison, plain
from tests.plugins.envs.math.adversarial import strings
from tests.plugins.envs.math.written import EQUAL, UNEQUAL


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (r"\left( 1 ,\; 2 \right]", "(1, 2]"),
        (r"\dfrac12+\tfrac{1}3", r"\frac{1}{2}+\frac{1}{3}"),
        (r"1 000\,000", "1000000"),
        ("1,000, 2,000 and 30", "1000, 2000, 30"),
        ("1,234,5", "1, 234, 5"),
        ("(1,234)", "(1, 234)"),
        ("58, 500", "58, 500"),
        ("58,500.5", "58500.5"),
        ("x² + x₁", "x^{2}+x_{1}"),
        ("x⁻¹⁰", "x^{-10}"),
        ("√16 ≤ ∞", r"\sqrt{16}\le\infty"),
        ("90°", r"90^\circ"),
        (r"\mathrm{~cm}", r"\text{cm}"),
        (r"\mathrm{e}^{2}", "e^{2}"),
        (r"\frac{1}{2}\quad x \\ \, y", r"\frac{1}{2}x\\y"),
        ("x+3 1/2", r"x+(\frac{7}{2})"),
        ("-2½", "-5/2"),
        (r"10\frac{3}{2}", r"10\cdot\frac{3}{2}"),
        (r"1.2\overline{34}", r"(\frac{1222}{990})"),
        (r".\dot3", r"(\frac{3}{9})"),
        (r"1, \text{ and } 2", "1, 2"),
        ("sand or order", "sand, order"),
        (r"\{ x | x \in A \}", r"\{x|x\in A\}"),
        ("f'", r"f^{\prime}"),
    ],
)
def test_a_text_has_one_spelling(text: str, written: str):
    assert plain(text) == written


def test_decimals_are_fractions_and_sides_of_equations_are_checked():
    assert comparison("x = 2^0.5 + 1.50i", "2") == AnswerComparison(
        answer=r"2^{(\frac{5}{10})}+(\frac{150}{100})I",
        reference="2",
        sides=(("x", r"2^{(\frac{5}{10})}+(\frac{150}{100})I"),),
    )
    assert comparison(r"0.42", r"42\text{ percent}") == AnswerComparison(
        r"(\frac{42}{100})", r"\frac{42}{100}"
    )
    assert comparison("i^2+1", r"\sum_{i=1}^3 i") == AnswerComparison("(I)^2+1", r"\sum_{i=1}^3 i")
    assert comparison("y = 5 cm", "x = 5 km") is False
    assert comparison("y = 5 cm", r"x = 5\text{ cm}") == AnswerComparison("y = 5", "x = 5")


@given(
    st.text(alphabet="0123 ,./=_^{}()[]\\$%<½²√ acmorx", max_size=30),
    st.sampled_from(["42", "(1, 2)", r"5\%"]),
)
def test_any_text_is_compared_or_is_another_answer(text: str, reference: str):
    result = comparison(text, reference)
    assert isinstance(result, (bool, AnswerComparison))
    assert comparison(reference, reference) is True
    assert plain(" " + text + " ") == plain(text)


def test_no_text_keeps_it_busy():
    texts = strings(150, seed=5) + [
        sign * MOST for sign in (" ", "1,", "{", r"\text{", "1½", "ﷺ", "=", r"\choose")
    ]
    start = time.process_time()
    for text in texts:
        comparison(text[:MOST], "42")
    assert time.process_time() - start < 2.0


def test_the_lists_hold_each_pair_once():
    pairs = EQUAL + UNEQUAL
    assert len(set(pairs)) == len(pairs) > 150
