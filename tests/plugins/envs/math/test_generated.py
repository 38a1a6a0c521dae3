"""Generated problems: their answers by hand and by sympy, disjoint splits, and what words can write."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st

from coterie.plugins.envs.math import generated
from coterie.plugins.envs.math.generated import (
    COMPACT_LEVELS,
    LEVELS,
    WORDS,
    GeneratedProblems,
    evaluate,
    reduce,
    spell,
    unspell,
)
from coterie.plugins.envs.math.records import content

levels = st.integers(1, LEVELS)
seeds = st.integers(0, 2**31)


def task_of(level: int, seed: int, split="train"):
    return GeneratedProblems(split=split, seed=seed, count=1, level=level)[0]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("7 + 5 - 3", 9),
        ("7 + 3 * 5", 22),
        ("( 19 - 4 ) / 3", 5),
        ("( 1 + 2 ) * ( 3 + 4 )", 21),
        ("7 / 2", Fraction(7, 2)),
        ("5 - 9", -4),
    ],
)
def test_an_expression_has_a_value(expression: str, value):
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    "text", ["", "+", "7 +", "( 7", "7 )", "7 7", "1 / 0", "x", "7 + - 5", "2 ^ 3", "9" * 999]
)
def test_any_other_text_has_none(text: str):
    assert evaluate(text) is None


@pytest.mark.parametrize(
    ("expression", "steps"),
    [
        ("7 + 5 - 3", ["12 - 3", "9", "9"]),
        ("7 + 3 * 5", ["7 + 15", "22"]),
        ("( 19 - 4 ) / 3", ["15 / 3", "5"]),
        ("( 1 + 2 ) * ( 3 + 4 )", ["3 * ( 3 + 4 )", "3 * 7", "21"]),
    ],
)
def test_one_operation_at_a_time(expression: str, steps: list[str]):
    for step in steps:
        expression = reduce(expression)
        assert expression == step


@pytest.mark.parametrize("expression", ["3 - 5", "7 / 2", "7 +"])
def test_what_words_cannot_write_is_refused(expression: str):
    with pytest.raises(ValueError):
        reduce(expression)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, COMPACT_LEVELS), seeds)
def test_a_small_problem_is_computed_in_two_steps_of_known_words(level: int, seed: int):
    task = task_of(level, seed)
    words, expression = task.payload.words, task.payload.expression
    assert set(words.split()) <= set(WORDS)
    assert {digits for digits in re.findall(r"\d+", unspell(words))} == set(re.findall(r"\d+", expression))
    one = reduce(expression)
    two = reduce(one)
    assert one != two == task.answer and two.isdigit()
    for text in (expression, one, two):
        assert set(spell(text).split()) <= set(WORDS) and unspell(spell(text)) == text


@settings(max_examples=40, deadline=None)
@given(levels, seeds)
def test_sympy_finds_the_same_value(level: int, seed: int):
    sympy = pytest.importorskip("sympy")
    task = task_of(level, seed)
    assert sympy.sympify(task.payload.expression, rational=True) == sympy.Rational(task.answer)


@settings(max_examples=6, deadline=None)
@given(seeds)
def test_sympy_solves_the_equations_that_the_text_holds(seed: int):
    sympy = pytest.importorskip("sympy")
    x = sympy.Symbol("x")
    linear = task_of(4, seed)
    match = re.fullmatch(
        r"(\d+) times a number, (plus|minus) (\d+), is (\d+)\. Which number is it\?", linear.payload.text
    )
    assert match is not None
    factor, term, right = int(match[1]), int(match[3]), int(match[4])
    [root] = sympy.solve(factor * x + (term if match[2] == "plus" else -term) - right, x)
    assert root == sympy.Rational(linear.answer)

    quadratic = task_of(5, seed)
    left = quadratic.payload.text.partition("$")[2].partition(" = 0$")[0]
    equation = sympy.sympify(re.sub(r"(\d)x", r"\1*x", left).replace("^", "**"))
    roots = sympy.roots(equation, x)
    total = sympy.simplify(sum(root**2 * times for root, times in roots.items()))
    assert len(roots) == 2 and total == sympy.Rational(quadratic.answer)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), seeds)
def test_a_story_tells_what_is_computed(level: int, seed: int):
    """Read the prose sentence by sentence, in another way than it was written."""
    task = task_of(level, seed)
    total = 0
    for sentence in task.payload.text.split(". ")[:-1]:
        amounts = [int(digits) for digits in re.findall(r"\d+", sentence)]
        amount = amounts[0] * amounts[1] if "bags of" in sentence else amounts[0]
        total += -amount if "loses" in sentence or "gives" in sentence else amount
    assert str(total) == task.answer


@pytest.mark.parametrize("level", range(1, LEVELS + 1))
def test_splits_share_no_problem_under_any_seed(level: int):
    texts: dict[str, set[str]] = {}
    for split in ("train", "val", "test"):
        for seed in (0, 1):
            source = GeneratedProblems(split=split, seed=seed, count=40, level=level)
            for index in range(40):
                payload = source[index].payload
                texts.setdefault(split, set()).add(content(payload.text))
                texts.setdefault(f"{split} expressions", set()).add(payload.expression)
    assert len(texts["train"]) > 50
    for kind in ("", " expressions"):
        train, val, test = (texts[split + kind] for split in ("train", "val", "test"))
        assert not train & val and not train & test and not val & test


def equation(text: str) -> tuple | None:
    """A text's equation over its leading coefficient, read from the text; None where it holds none."""
    linear = re.match(r"(\d+) times a number, (plus|minus) (\d+), is (\d+)\.", text)
    if linear is not None:
        factor, term, right = int(linear[1]), int(linear[3]), int(linear[4])
        return "linear", linear[2], Fraction(term, factor), Fraction(right, factor)
    quadratic = re.search(r"\$(\d*)x\^2 [+-] (\d*)x ([+-] \d+) = 0\$", text)
    if quadratic is None:
        return None
    a, b, c = int(quadratic[1] or 1), int(quadratic[2] or 1), int(quadratic[3].replace(" ", ""))
    return "quadratic", Fraction(b, a), Fraction(c, a)


def test_a_problem_is_in_one_split_at_every_level_and_under_every_seed():
    splits: dict[object, set[str]] = {}
    levels_of: dict[object, set[int]] = {}
    for level in range(1, LEVELS + 1):
        for split in ("train", "val", "test"):
            for seed in (0, 1, 2):
                source = GeneratedProblems(split=split, seed=seed, count=150, level=level)
                for index in range(150):
                    text = source.draw(index).text
                    for problem in (content(text), equation(text)):
                        splits.setdefault(problem, set()).add(split)
                        levels_of.setdefault(problem, set()).add(level)
    splits.pop(None)
    levels_of.pop(None)
    assert any(len(levels) > 1 for levels in levels_of.values())  # the same text, of two levels
    assert {problem: found for problem, found in splits.items() if len(found) > 1} == {}


def test_a_task_is_a_function_of_split_seed_and_index():
    one, again = (GeneratedProblems(split="train", seed=3, count=9, level=2) for _ in range(2))
    assert [one[index] for index in range(9)] == [again[index] for index in reversed(range(9))][::-1]
    assert one[0] != GeneratedProblems(split="train", seed=4, count=9, level=2)[0]
    with pytest.raises(IndexError):
        one[9]


def test_a_word_becomes_one_of_its_sort():
    import numpy as np

    rng = np.random.default_rng(0)
    digits = {generated.random_word(rng, "7") for _ in range(200)}
    signs = {generated.random_word(rng, "+") for _ in range(200)}
    assert digits == set("0123456789") and signs == set("+-*/") and generated.random_word(rng, "(") == "("
