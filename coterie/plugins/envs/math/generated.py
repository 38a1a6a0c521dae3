"""Generated problems of arithmetic and algebra, offline, with their answers.

Levels:

1. a story with two changes, one-digit numbers: `has 7 gets 5 loses 3`; nothing is below 0 or above 18
2. the same with numbers up to 99
3. a story with a product: `has 7 gets 3 times 5`
4. a linear equation: `3 times x plus 4 is 1 9`
5. the sum of the squares of a quadratic's roots; its answer may be a quotient

A problem of levels 1 to 4 has a form in few words, for models of under a million parameters, and is computed
in two steps of one operation. The hash of what is to be computed decides the split, whatever the wording and
the level: a curriculum over `level` meets no problem of val or test in train. Equations that differ by a
factor are the same.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from coterie.core.errors import ConfigError
from coterie.core.types import Task
from coterie.core.types.seeding import generator
from coterie.plugins.envs.common.generated import Generated, split_of
from coterie.plugins.envs.math.state import Problem

LEVELS = 5
COMPACT_LEVELS = 4
"""Levels whose problems have a form in few words."""
_TRIES = 1000
_GAINS = {"gets": "Ann gets {n} apples.", "finds": "Ann finds {n} apples."}
_LOSSES = {"loses": "Ann loses {n} apples.", "gives": "Ann gives {n} apples away."}
_OPERATIONS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
WORDS = (*"0123456789", *_OPERATIONS, "(", ")", "has", *_GAINS, *_LOSSES, "times", "x", "plus", "minus", "is")
"""Every word of the compact form."""


@dataclass(frozen=True, slots=True)
class GeneratedProblems(Generated):
    """The generated problems of a split and level."""

    level: int = 1
    path: str = "env"

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < self.count:
            raise IndexError(index)
        problem: Problem = self.draw(index)
        value = evaluate(problem.expression)
        assert value is not None
        return Task(
            id=f"{self.split}-{self.level}-{index}",
            payload=problem,
            answer=str(value),
            stratum=f"level {self.level}",
        )

    def draw(self, index: int) -> Problem:
        """The problem.

        Raises:
            ConfigError: no draw belongs to the split.
        """
        rng = generator(self.seed, f"{self.split}-{index}", f"math level {self.level}")
        for _ in range(_TRIES):
            problem, computed = _MAKERS[self.level](rng)
            if split_of(computed) == self.split:
                return problem
        raise ConfigError(f"no problem of level {self.level} is in '{self.split}'", path=f"{self.path}.level")


# ------------------------------------------------------------------------------------------- making problems

Made = tuple[Problem, str]
"""A problem, and what is to be computed, whatever the wording and the level: its hash decides the split."""


def _number(rng: np.random.Generator, low: int, high: int) -> int:
    return int(rng.integers(low, high + 1))


def _one_of(rng: np.random.Generator, words: Iterable[str]) -> str:
    choices = list(words)
    return choices[int(rng.integers(len(choices)))]


def _multiple_of(kind: str, *coefficients: int) -> str:
    """An equation of a kind, the same for all its multiples and for both orders of its sides.

    Args:
        coefficients: those of the unknown first, the leading one above 0.
    """
    divisor = math.gcd(*coefficients)
    return f"{kind} {' '.join(str(number // divisor) for number in coefficients)}"


def _story(rng: np.random.Generator, largest: int, ceiling: int) -> Made:
    """A story of two changes; `ceiling`: the most apples at any time."""
    start = total = _number(rng, 1, largest)
    expression, clauses = str(start), list[tuple[str, int]]()
    for _ in range(2):
        gain = total == 0 or (total < ceiling and bool(rng.integers(2)))
        change = _number(rng, 1, min(largest, ceiling - total if gain else total))
        total += change if gain else -change
        expression += f" {'+' if gain else '-'} {change}"
        clauses.append((_one_of(rng, _GAINS if gain else _LOSSES), change))
    return _told(rng, expression, start, [(verb, str(n), str(n)) for verb, n in clauses])


def _product(rng: np.random.Generator) -> Made:
    bags, each = _number(rng, 2, 9), _number(rng, 2, 9)
    gain = bool(rng.integers(2))
    start = _number(rng, 1, 20) if gain else bags * each + _number(rng, 0, 20)
    expression = f"{start} {'+' if gain else '-'} {bags} * {each}"
    verb = _one_of(rng, _GAINS if gain else _LOSSES)
    return _told(rng, expression, start, [(verb, f"{bags} times {each}", f"{bags} bags of {each}")])


def _told(rng: np.random.Generator, expression: str, start: int, clauses: list[tuple[str, str, str]]) -> Made:
    """The story: its clauses in order, and the start anywhere among them.

    Args:
        clauses: (verb, number in words, number in prose).
    """
    words = [f"{verb} {number}" for verb, number, _ in clauses]
    prose = [(_GAINS | _LOSSES)[verb].format(n=number) for verb, _, number in clauses]
    place = _number(rng, 0, len(clauses))
    words.insert(place, f"has {start}")
    prose.insert(place, f"At first Ann has {start} apples.")
    text = " ".join([*prose, "How many apples has Ann in the end?"])
    return Problem(text=text, words=spell(" ".join(words)), expression=expression), expression


def _linear(rng: np.random.Generator) -> Made:
    factor, unknown, plus = _number(rng, 2, 9), _number(rng, 1, 20), bool(rng.integers(2))
    term = _number(rng, 1, 20) if plus else _number(rng, 1, factor * unknown)
    right = factor * unknown + (term if plus else -term)
    sign = "plus" if plus else "minus"
    problem = Problem(
        text=f"{factor} times a number, {sign} {term}, is {right}. Which number is it?",
        words=spell(f"{factor} times x {sign} {term} is {right}"),
        expression=f"( {right} {'-' if plus else '+'} {term} ) / {factor}",
    )
    return problem, _multiple_of("linear", factor, term if plus else -term, right)


def _quadratic(rng: np.random.Generator) -> Made:
    """By Vieta: (b² - 2ac) / a². Both roots are real, and c is not 0."""
    while True:
        a, b, c = _number(rng, 1, 6), _number(rng, -12, 12), _number(rng, -12, 12)
        if b and c and b * b > 4 * a * c:
            break
    leading = "x^2" if a == 1 else f"{a}x^2"
    middle = f"{'+' if b > 0 else '-'} {'' if abs(b) == 1 else abs(b)}x"
    equation = f"{leading} {middle} {'+' if c > 0 else '-'} {abs(c)} = 0"
    sign = "-" if c > 0 else "+"  # expressions have no negative numbers
    problem = Problem(
        text=f"Find the sum of the squares of the roots of ${equation}$.",
        expression=f"( {abs(b)} * {abs(b)} {sign} 2 * {a} * {abs(c)} ) / ( {a} * {a} )",
    )
    # Roots of the other sign have the same squares.
    return problem, _multiple_of("quadratic", a, abs(b), c)


_MAKERS: dict[int, Callable[[np.random.Generator], Made]] = {
    1: lambda rng: _story(rng, 9, 18),
    2: lambda rng: _story(rng, 99, 199),
    3: _product,
    4: _linear,
    5: _quadratic,
}

# ------------------------------------------------------------------------------------------------ expressions

_TOKEN = re.compile(r"\d+|[-+*/()]")
_SPELT = re.compile(r"(?<=\d) +(?=\d)")
_LONGEST = 200
"""Characters of an expression that are read."""


def spell(text: str) -> str:
    """The text with every digit a word: `12 - 3` is `1 2 - 3`."""
    return re.sub(r"(?<=\d)(?=\d)", " ", text)


def unspell(text: str) -> str:
    """The text with digits joined to numbers: `1 2 - 3` is `12 - 3`."""
    return _SPELT.sub("", " ".join(text.split()))


def evaluate(expression: str) -> Fraction | None:
    """The value of an expression of whole numbers, `+ - * /` and parentheses; None for any other text."""
    tokens = _TOKEN.findall(expression) if len(expression) <= _LONGEST else []
    if not tokens or "".join(tokens) != "".join(expression.split()):
        return None
    try:
        value, rest = _sum(tokens)
    except (ValueError, ZeroDivisionError, IndexError):
        return None
    return None if rest else value


def reduce(expression: str) -> str:
    """The expression after its next operation: `7 + 3 * 5` is `7 + 15`. A number stays as it is.

    Raises:
        ValueError: it can't be read, or its next operation gives no whole number from 0.
    """
    tokens = _TOKEN.findall(expression)
    if evaluate(expression) is None:
        raise ValueError(f"'{expression}' has no value")
    place = _next(tokens)
    if place is None:
        return " ".join(tokens)
    value = _OPERATIONS[tokens[place]](Fraction(tokens[place - 1]), Fraction(tokens[place + 1]))
    if value < 0 or value.denominator > 1:
        raise ValueError(f"'{' '.join(tokens[place - 1 : place + 2])}' is no whole number from 0")
    start, end = place - 1, place + 2
    if tokens[start - 1 : start] == ["("] and tokens[end : end + 1] == [")"]:
        start, end = start - 1, end + 1
    return " ".join([*tokens[:start], str(value), *tokens[end:]])


def _next(tokens: list[str]) -> int | None:
    """The index of the next operation: of those between two numbers, inside the first innermost
    parentheses, the first of the highest rank."""
    close = tokens.index(")") if ")" in tokens else len(tokens)
    opened = [index for index in range(close) if tokens[index] == "("]
    inside = range(opened[-1] + 1 if opened else 0, close)
    for rank in ("*/", "+-"):
        for index in inside:
            if tokens[index] in rank:
                return index
    return None


def _sum(tokens: list[str]) -> tuple[Fraction, list[str]]:
    return _chain(tokens, "+-", lambda rest: _chain(rest, "*/", _atom))


def _chain(
    tokens: list[str], signs: str, part: Callable[[list[str]], tuple[Fraction, list[str]]]
) -> tuple[Fraction, list[str]]:
    value, rest = part(tokens)
    while rest and rest[0] in signs:
        sign, (other, rest) = rest[0], part(rest[1:])
        value = _OPERATIONS[sign](value, other)
    return value, rest


def _atom(tokens: list[str]) -> tuple[Fraction, list[str]]:
    if tokens[0] == "(":
        value, rest = _sum(tokens[1:])
        if rest[0] != ")":
            raise ValueError("a parenthesis is not closed")
        return value, rest[1:]
    return Fraction(int(tokens[0])), tokens[1:]


def random_word(rng: np.random.Generator, word: str) -> str:
    """Another word of the same sort: a digit for a digit, a sign for a sign."""
    sort: Any = "0123456789" if word.isdigit() else tuple(_OPERATIONS) if word in _OPERATIONS else (word,)
    return str(sort[int(rng.integers(len(sort)))])
