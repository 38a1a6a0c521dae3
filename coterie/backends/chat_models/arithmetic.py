"""Equalities between numbers in a text, such as `12 + 7 = 19`: which are true, and which are not."""

from __future__ import annotations

import ast
import itertools
import re
from fractions import Fraction
from typing import NamedTuple

LONGEST = 200
"""Most characters of one side; a longer one is not read."""
_SAME = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})
_LATEX = ((re.compile(r"\\(?:times|cdot)\b"), "*"), (re.compile(r"\\div\b"), "/"), (re.compile(r"[$]"), " "))
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_OTHER = re.compile(r"[<>!:≠≈]=?|=[<>]|={2,}|≤|≥")
"""Signs that are no equality; what stands at both sides of one is not compared."""
_END = re.compile(r"[\d\s.+\-*/()]*$")
_BEGINNING = re.compile(r"[\d\s.+\-*/()]*")
_LETTER = re.compile(r"[\w\\^%!\[\]{}]")
"""A character that binds a number to something that is no number: `2x`, `x^2`."""

_OPERAND = re.compile(r"(?:\b[A-Za-z]|[)\]}\d])\s*$")
"""What a minus after it is taken from: `x -3`; after a word, `-3` is a number."""


_SUM = re.compile(r"[\d(][\d\s.+\-*/()]*")
_SPELT = re.compile(r"(?<=\d) +(?=\d)")
"""Blanks between digits: models that read words write `1 2` for 12."""
_ZEROS = re.compile(r"(?<![\d.])0+(?=\d)")


class Sum(NamedTuple):
    """A number or a sum of numbers, without blanks."""

    text: str
    value: Fraction


def last_sum(text: str) -> Sum | None:
    """The last number or sum in a text; digits with blanks between them are one number."""
    for match in reversed(list(_SUM.finditer(text.translate(_SAME)))):
        written = _ZEROS.sub("", _SPELT.sub("", match[0])).strip().rstrip(".").strip()
        value = _value(written) if len(written) <= LONGEST else None
        if value is not None:
            return Sum("".join(written.split()), value)
    return None


class Equality(NamedTuple):
    """Two sides that a text says are equal."""

    text: str
    true: bool


def equalities(text: str) -> list[Equality]:
    """All equalities between two numbers or sums, of which one has an operator; chains give several."""
    text = text.translate(_SAME)
    for pattern, sign in _LATEX:
        text = pattern.sub(sign, text)
    text = _THOUSANDS.sub("", text)
    parsed: list[Equality] = []
    for line in re.split(r"[\n;,]|\. ", _OTHER.sub("\n", text)):
        sides = line.split("=")
        for before, after in itertools.pairwise(sides):
            left, right = _left(before), _right(after)
            if left and right and not (_is_number(left) and _is_number(right)):
                first, second = _value(left), _value(right)
                if first is not None and second is not None:
                    parsed.append(Equality(f"{left} = {right}", _equal(left, right, first, second)))
    return parsed


def _left(side: str) -> str:
    """The sum at the end of a text; empty where it belongs to a larger one."""
    match = _END.search(side[-LONGEST:])
    written = match[0] if match is not None else ""
    before = side[: len(side) - len(written)]
    bare = written.strip()
    # `x + 3 =` and `2x - 1 =`: a part of a sum with a letter. `so 3 + 4 =` is whole.
    joined = bool(before) and (not written[:1].isspace() and _LETTER.match(before[-1]) is not None)
    minus = bare[:1] == "-" and (bare[1:2].isspace() or _OPERAND.search(before) is not None)
    unfinished = bare[:1] in ("+", "*", "/") or minus
    return "" if joined or unfinished else bare.strip(".").strip()


def _right(side: str) -> str:
    """The sum at the beginning of a text; empty where it belongs to a larger one."""
    match = _BEGINNING.match(side[:LONGEST])
    written = match[0] if match is not None else ""
    after, bare = side[len(written) :], written.strip().rstrip(".").strip()
    joined = bool(after) and not written[-1:].isspace() and _LETTER.match(after[0]) is not None
    return "" if joined or bare[-1:] in ("+", "-", "*", "/", "(") else bare


def _is_number(side: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", side) is not None


def _equal(left: str, right: str, first: Fraction, second: Fraction) -> bool:
    """Equal, or equal when rounded to the decimals of a side that is one number."""
    for side in (left, right):
        decimals = re.fullmatch(r"-?\d+\.(\d+)", side)
        if decimals is not None:
            return abs(first - second) <= Fraction(1, 2 * 10 ** len(decimals[1]))
    return first == second


def _value(side: str) -> Fraction | None:
    """The value of a sum; None: it is none, or has no value."""
    try:
        return _of(ast.parse(side, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError, OverflowError):
        return None


def _of(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return -_of(node.operand) if isinstance(node.op, ast.USub) else _of(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _of(node.left), _of(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            return left / right
    raise ValueError("no sum of numbers")
