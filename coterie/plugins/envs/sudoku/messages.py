"""The words of Sudoku: how cells, digits and assignments are written and read.

The environment (its oracle writes, its step reads whatever a role hands over) and the roles share it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from coterie.core.errors import PolicyFault
from coterie.plugins.envs.common import parsing as lists
from coterie.plugins.envs.common.grid import Cell
from coterie.plugins.envs.common.parsing import LIST, Rendering, as_list, cell_word, listed
from coterie.plugins.envs.common.roles import COMPACT_ROLES
from coterie.plugins.envs.sudoku.fills import Assignment

PlanLanguage = Literal["digits", "letters"]

NOTHING = "-"
"""The plan's word for a cell that it says nothing of."""

_NUMBER = r"(-?\d{1,6})"
_ASSIGNMENT = re.compile(rf"r{_NUMBER}c{_NUMBER}\s*[=:]\s*{_NUMBER}", re.IGNORECASE)
_TRIPLE = re.compile(rf"[(\[]\s*{_NUMBER}\s*,\s*{_NUMBER}\s*,\s*{_NUMBER}\s*[)\]]")
_ROWS = re.compile(r"\[[^\[\]]*\]")
_LABELS = lists.label("assignments?", "digits", "cells", "answer", "solution", "plan")
_RULE = re.compile(r"[-+|=\s]*")
_TAIL = 8000
"""Characters from the end of a prose answer in which its list is looked for: it may hold a large grid."""
_TOLD = 256
"""Assignments of another's message that are told: as many as the largest grid has cells."""


def assignment_word(assignment: Assignment) -> str:
    row, column, digit = assignment
    return f"{cell_word((row, column))}={digit}"


def assignment_list(assignments: Sequence[Assignment]) -> str:
    """For sentences; of very many only the first."""
    return listed([assignment_word(one) for one in assignments], "nothing", _TOLD)


def plan_word(digit: int, language: PlanLanguage) -> str:
    """A digit of the planner's: `3`, or `c`."""
    return chr(ord("a") + digit - 1) if language == "letters" else str(digit)


def vocabulary(size: int, language: PlanLanguage) -> Iterator[str]:
    """Every word of the compact rendering at a size; letters only where they are spoken."""
    digits = range(1, size + 1)
    cells = [(row, column) for row in range(size) for column in range(size)]
    yield from (*COMPACT_ROLES, "plan", ":", NOTHING)
    yield from (str(digit) for digit in digits)
    yield from (f"?{digit}" for digit in digits)
    yield from (plan_word(digit, language) for digit in digits if language == "letters")
    yield from map(cell_word, cells)
    yield from (assignment_word((*cell, digit)) for cell in cells for digit in digits)


# ------------------------------------------------------------------------------------------------- reading


def read_plan(text: str, opened: Sequence[Cell], size: int, language: PlanLanguage) -> tuple[Assignment, ...]:
    """The planner's compact message: a word for each open cell in turn, or for the first of them.

    `-` leaves a cell as it is.

    Raises:
        PolicyFault: a word is no digit of the grid in that language, or there are more words than open cells.
    """
    words = text.split()
    if len(words) > len(opened):
        raise PolicyFault(f"{len(words)} words for {len(opened)} open cells")
    digits = {plan_word(digit, language): digit for digit in range(1, size + 1)}
    for word in words:
        if word != NOTHING and word not in digits:
            raise PolicyFault(f"'{word[:20]}' is no digit of the plan")
    said = zip(opened, words, strict=False)
    return tuple((*cell, digits[word]) for cell, word in said if word != NOTHING)


def read_assignments(
    text: str, rendering: Rendering, size: int, shown: Sequence[int] | None = None
) -> tuple[Assignment, ...]:
    """Assignments of a message, which may name cells and digits that don't exist; () of an empty one.

    Prose may reason first: its last list or its last grid counts, whichever comes later; then its last
    labelled line; then the whole text. A list holds `r0c1=3`, or (row, column, digit).

    Args:
        shown: the grid that the role saw. A grid in prose says what is new in it; without it every digit.

    Raises:
        PolicyFault: it isn't a list of assignments.
    """
    if rendering == "compact":
        return tuple(_assignment(word) for word in text.split())
    text = lists.ending(text, _TAIL)
    if not text:
        return ()
    found = list(LIST.finditer(text))
    drawn, end = _last_grid(text, size)
    if drawn is not None and (not found or end >= found[-1].end()):
        return _news(drawn, size, shown)
    if not found:
        return lists.read_unlisted(text, _read_list, "assignments", _LABELS)
    last = found[-1][0][1:-1]
    rows = [_row(row, size) for row in _ROWS.findall(last)]
    if len(rows) == size and None not in rows:  # a grid on one line, as Python prints it
        return _news([digit for row in rows for digit in row or ()], size, shown)
    return _read_list(last)


def as_assignments(parsed: Any, size: int, shown: Sequence[int]) -> tuple[Assignment, ...] | None:
    """What a role handed over, as assignments; None where it isn't any. Text is read as prose."""

    def one(item: Any) -> Assignment:
        if isinstance(item, str):
            return _assignment(item)
        row, column, digit = item
        return int(row), int(column), int(digit)

    return as_list(parsed, lambda text: read_assignments(text, "prose", size, shown), one)


def _assignment(word: str) -> Assignment:
    match = _ASSIGNMENT.fullmatch(word)
    if match is None:
        raise PolicyFault(f"'{word[:20]}' is not an assignment")
    return int(match[1]), int(match[2]), int(match[3])


def _read_list(part: str) -> tuple[Assignment, ...]:
    """`r0c1=3, r2c3: 1` or `(0, 1, 3), (2, 3, 1)`; a part that is one bare triple is one assignment."""
    if re.fullmatch(rf"\s*{_NUMBER}\s*,\s*{_NUMBER}\s*,\s*{_NUMBER}\s*", part):
        part = f"({part})"
    part = _TRIPLE.sub(lambda match: f" r{match[1]}c{match[2]}={match[3]} ", part)
    part = _ASSIGNMENT.sub(lambda match: f" r{match[1]}c{match[2]}={match[3]} ", re.sub(r"[\"'`*]", "", part))
    return tuple(_assignment(word) for word in re.split(r"[\s,;.]+", part) if word)


def _last_grid(text: str, size: int) -> tuple[list[int] | None, int]:
    """The last `size` lines in a row that hold `size` digits each, and where they end in the text.

    Lines of a frame (`---+---`) between them are passed over. An empty cell is `.`, `_` or 0.
    """
    rows: list[list[int]] = []
    found: list[int] | None = None
    end = at = 0
    for line in text.splitlines(keepends=True):
        at += len(line)
        row = _row(line, size)
        if row is not None:
            rows.append(row)
            if len(rows) >= size:
                found, end = [digit for one in rows[-size:] for digit in one], at
        elif not (line.strip() and _RULE.fullmatch(line)):
            rows = []
    return found, end


def _row(line: str, size: int) -> list[int] | None:
    words = re.sub(r"[\[\](),|]", " ", line).split()
    if len(words) == 1 and size < 10:
        words = list(words[0])
    if len(words) != size:
        return None
    digits = [
        0 if word in "._" else int(word) if word.isdecimal() and len(word) < 3 else -1 for word in words
    ]
    return None if min(digits) < 0 else digits


def _news(drawn: Sequence[int], size: int, shown: Sequence[int] | None) -> tuple[Assignment, ...]:
    before = shown if shown is not None else [0] * len(drawn)
    return tuple(
        (*divmod(cell, size), digit) for cell, digit in enumerate(drawn) if digit and digit != before[cell]
    )
