"""The words of the coding game: problems, answers and feedback for the smallest models.

A problem is two operations: `+ 3 then * 4` asks for f(x) = (x + 3) * 4. The helper writes one operation, `+
3`: its function is aux(x) = x + 3. The main role writes one too, and where aux stands: `aux * 4` is f(x) =
aux(x) * 4, and `+ 3 aux` is f(x) = aux(x + 3). So either may do either operation, and only answers that
complement each other are
right: the two have to agree without seeing each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

AUX = "aux"
OPERATIONS = "+-*"
INPUTS = (0, 1, 2, 5, 11)
"""What the tests call f with."""
_PART = re.compile(r"([-+*]) (\d{1,3})")
_MAIN = re.compile(rf"(?:{AUX} {_PART.pattern}|{_PART.pattern} {AUX})")
_WHOLE = re.compile(rf"{_PART.pattern} {_PART.pattern}")
FEEDBACK = ("tests", "of", "passed", "aux", "main", "missing", "found")
"""Words of findings, beside numbers."""


@dataclass(frozen=True, slots=True)
class Operation:
    """`+ 3`."""

    sign: str
    number: int

    def __str__(self) -> str:
        return f"{self.sign} {self.number}"


@dataclass(frozen=True, slots=True)
class Formula:
    """Two operations, one after the other."""

    first: Operation
    second: Operation

    def __str__(self) -> str:
        return f"{self.first} then {self.second}"

    def tests(self) -> str:
        """Asserts on f."""
        code = f"({{x}} {self.first}) {self.second}"
        return "".join(f"assert f({x}) == {code.format(x=x)}\n" for x in INPUTS)


def formulas(largest: int) -> Iterable[Formula]:
    """All problems with numbers from 2 to `largest`; none with two equal operations."""
    parts = [Operation(sign, number) for sign in OPERATIONS for number in range(2, largest + 1)]
    return (Formula(first, second) for first in parts for second in parts if first != second)


def formula(text: str) -> Formula:
    """The problem of a text; ValueError: it is none."""
    match = re.fullmatch(rf"{_PART.pattern} then {_PART.pattern}", text)
    if match is None:
        raise ValueError(f"'{text[:40]}' is no problem such as '+ 3 then * 4'")
    return Formula(Operation(match[1], int(match[2])), Operation(match[3], int(match[4])))


def code(role: str, text: str) -> str:
    """The Python of an answer; empty: it can't be read."""
    line = " ".join(text.split())
    if role == AUX:
        match = _PART.fullmatch(line)
        return f"def aux(x):\n    return x {line}\n" if match else ""
    if role == "main":
        match = _MAIN.fullmatch(line)
        if match is None:
            return ""
        after, before = line.removeprefix(AUX).strip(), line.removesuffix(AUX).strip()
        body = f"aux(x) {after}" if line.startswith(AUX) else f"aux(x {before})"
        return f"def f(x):\n    return {body}\n"
    match = _WHOLE.fullmatch(line)
    return f"def f(x):\n    return (x {match[1]} {match[2]}) {match[3]} {match[4]}\n" if match else ""


def vocabulary(largest: int) -> Iterable[str]:
    """Every word of prompts, answers and findings."""
    return (*OPERATIONS, *map(str, range(largest + 1)), "then", ":", AUX, "main", "solver", *FEEDBACK)


def demonstration(role: str, problem: Formula, noise: float, rng: np.random.Generator, largest: int) -> str:
    """A right answer: of the two that a role of the pair may give, either, with equal probability.

    Each operation becomes another one with probability `noise`.
    """
    first, second = (_noisy(part, noise, rng, largest) for part in (problem.first, problem.second))
    takes_first = bool(rng.integers(2))
    if role == AUX:
        return str(first if takes_first else second)
    if role == "main":
        return f"{first} {AUX}" if takes_first else f"{AUX} {second}"
    return f"{first} {second}"


def _noisy(part: Operation, noise: float, rng: np.random.Generator, largest: int) -> Operation:
    if rng.random() >= noise:
        return part
    return Operation(OPERATIONS[int(rng.integers(3))], int(rng.integers(2, largest + 1)))
