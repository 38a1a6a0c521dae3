"""The words of Sudoku: how cells, digits and assignments are written and read.

Shared by the roles and the environment, whose oracle writes messages and whose step reads parsed actions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from coterie.core.errors import PolicyFault
from coterie.plugins.envs.board import parsing
from coterie.plugins.envs.board.effects import Effect, play
from coterie.plugins.envs.board.grid import Cell
from coterie.plugins.envs.board.parsing import LIST, as_list, cell_word
from coterie.plugins.envs.board.roles import COMPACT_ROLES
from coterie.plugins.envs.common.teams import Rendering
from coterie.plugins.envs.sudoku.grid import Grid, Puzzle

Assignment = tuple[int, int, int]
"""(row, column, digit), as written: the cell or the digit may not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill(Effect):
    """The effect of a message: assignments, of which those after the solution are not tried."""

    end: Grid
    idle: int = 0
    """Assignments of the right digit to a cell that already had it."""
    gained: int = 0
    """Cells that are right at the end and weren't at the start."""
    recorded_as: ClassVar[str] = (
        "Fill(end, assignments=items, written, tried, illegal, idle, gained, readable)"
    )

    @property
    def correct(self) -> float:
        """Share of the tried assignments that made a cell right for good; `idle` ones aren't counted."""
        counted = self.tried - self.idle
        return self.gained / counted if counted else 0.0


def refusal(puzzle: Puzzle, assignment: Assignment) -> str:
    """The reason why an assignment breaks the rules; empty: it doesn't. A wrong digit is legal."""
    row, column, digit = assignment
    cell = puzzle.index((row, column))
    if cell is None:
        return "outside"
    if not 1 <= digit <= puzzle.size:
        return "digit"
    return "given" if puzzle.clues[cell] else ""


def fill(
    puzzle: Puzzle, grid: Grid, assignments: Sequence[Assignment], *, limit: int | None, skip: bool
) -> Fill:
    """Play assignments in order, up to the solution, the limit, or (unless `skip`) the first illegal one."""
    after, idle, wrong = list(grid), 0, still_wrong(puzzle, grid)

    def write(assignment: Assignment) -> str:
        nonlocal idle, wrong
        if reason := refusal(puzzle, assignment):
            return reason
        row, column, digit = assignment
        cell = row * puzzle.size + column
        right = puzzle.solution[cell]
        idle += after[cell] == digit == right
        wrong += int(after[cell] == right) - int(digit == right)
        after[cell] = digit
        return ""

    played = play(assignments, write, lambda: not wrong, limit=limit, skip=skip)
    gained = sum(was != right == now for was, now, right in zip(grid, after, puzzle.solution, strict=True))
    return Fill(end=tuple(after), idle=idle, gained=gained, **played)


def still_wrong(puzzle: Puzzle, grid: Grid) -> int:
    """The number of cells that are empty or not as in the solution."""
    return sum(digit != right for digit, right in zip(grid, puzzle.solution, strict=True))


PlanLanguage = Literal["digits", "letters"]

NOTHING = "-"
"""The plan's word for a cell that it leaves open."""

_NUMBER = r"(-?\d{1,6})"
_ASSIGNMENT = re.compile(rf"r{_NUMBER}c{_NUMBER}\s*[=:]\s*{_NUMBER}", re.IGNORECASE)
_TRIPLE = re.compile(rf"[(\[]\s*{_NUMBER}\s*,\s*{_NUMBER}\s*,\s*{_NUMBER}\s*[)\]]")
_ROWS = re.compile(r"\[[^\[\]]*\]")
_LABELS = parsing.label("assignments?", "digits", "cells", "answer", "solution", "plan")
_RULE = re.compile(r"[-+|=\s]*")
_TAIL = 8000
"""Length of the end of a prose answer that is searched for its list or grid, in characters."""


def assignment_word(assignment: Assignment) -> str:
    """An assignment's word: `r0c1=3`."""
    row, column, digit = assignment
    return f"{cell_word((row, column))}={digit}"


def plan_word(digit: int, language: PlanLanguage) -> str:
    """The planner's word for a digit: `3`, or `c`."""
    return chr(ord("a") + digit - 1) if language == "letters" else str(digit)


def vocabulary(size: int, language: PlanLanguage) -> Iterator[str]:
    """Every word of the compact rendering at a size; letters only if the planner writes them."""
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
    """The planner's compact message: one word for each open cell in order; cells at the end may be left out.

    `-` leaves a cell as it is.

    Raises:
        PolicyFault: a word is no digit in that language, or there are more words than open cells.
    """
    words = text.split()
    if len(words) > len(opened):
        raise PolicyFault(f"{len(words)} words for {len(opened)} open cells")
    digits = {plan_word(digit, language): digit for digit in range(1, size + 1)}
    for word in words:
        if word != NOTHING and word not in digits:
            raise PolicyFault(f"'{word[:20]}' is no digit of the plan")
    pairs = zip(opened, words, strict=False)
    return tuple((*cell, digits[word]) for cell, word in pairs if word != NOTHING)


def read_assignments(
    text: str, rendering: Rendering, size: int, shown: Sequence[int] | None = None
) -> tuple[Assignment, ...]:
    """Assignments of a message, which may name cells and digits that don't exist; () for an empty message.

    Prose may start with reasoning: its last list or last grid counts, whichever comes later; else its last
    labelled line; else the whole text. Items of a list are `r0c1=3`, or (row, column, digit).

    Args:
        shown: the grid that the role saw: of a grid in prose only digits that differ from it count; None:
        all.

    Raises:
        PolicyFault: the message isn't a list of assignments.
    """
    if rendering == "compact":
        return tuple(_assignment(word) for word in text.split())
    text = parsing.ending(text, _TAIL)
    if not text:
        return ()
    lists = list(LIST.finditer(text))
    grid, end = _last_grid(text, size)
    if grid is not None and (not lists or end >= lists[-1].end()):
        return _changed_digits(grid, size, shown)
    if not lists:
        return parsing.read_unlisted(text, _read_list, "assignments", _LABELS)
    last = lists[-1][0][1:-1]
    rows = [_row(row, size) for row in _ROWS.findall(last)]
    if len(rows) == size and None not in rows:  # a grid on one line, as Python prints it
        return _changed_digits([digit for row in rows for digit in row or ()], size, shown)
    return _read_list(last)


def as_assignments(parsed: Any, size: int, shown: Sequence[int]) -> tuple[Assignment, ...] | None:
    """A role's parsed action as assignments; None where it can't be read. Text is read as prose."""

    def from_item(item: Any) -> Assignment:
        if isinstance(item, str):
            return _assignment(item)
        row, column, digit = item
        return int(row), int(column), int(digit)

    return as_list(parsed, lambda text: read_assignments(text, "prose", size, shown), from_item)


def _assignment(word: str) -> Assignment:
    match = _ASSIGNMENT.fullmatch(word)
    if match is None:
        raise PolicyFault(f"'{word[:20]}' is not an assignment")
    return int(match[1]), int(match[2]), int(match[3])


def _read_list(part: str) -> tuple[Assignment, ...]:
    """The assignments of `r0c1=3, r2c3: 1` or `(0, 1, 3), (2, 3, 1)`; one bare triple is one assignment."""
    if re.fullmatch(rf"\s*{_NUMBER}\s*,\s*{_NUMBER}\s*,\s*{_NUMBER}\s*", part):
        part = f"({part})"
    part = _TRIPLE.sub(lambda match: f" r{match[1]}c{match[2]}={match[3]} ", part)
    part = _ASSIGNMENT.sub(lambda match: f" r{match[1]}c{match[2]}={match[3]} ", re.sub(r"[\"'`*]", "", part))
    return tuple(_assignment(word) for word in re.split(r"[\s,;.]+", part) if word)


def _last_grid(text: str, size: int) -> tuple[list[int] | None, int]:
    """The last `size` consecutive lines of `size` digits each, and the position of their end in the text.

    Frame lines (`---+---`) between them are skipped. An empty cell is `.`, `_` or 0.
    """
    rows: list[list[int]] = []
    grid: list[int] | None = None
    end = position = 0
    for line in text.splitlines(keepends=True):
        position += len(line)
        row = _row(line, size)
        if row is not None:
            rows.append(row)
            if len(rows) >= size:
                grid, end = [digit for grid_row in rows[-size:] for digit in grid_row], position
        elif not (line.strip() and _RULE.fullmatch(line)):
            rows = []
    return grid, end


def _row(line: str, size: int) -> list[int] | None:
    """The digits of a line; None where it isn't a row of a grid."""
    words = re.sub(r"[\[\](),|]", " ", line).split()
    if len(words) == 1 and size < 10:
        words = list(words[0])
    if len(words) != size:
        return None
    digits = [
        0 if word in "._" else int(word) if word.isdecimal() and len(word) < 3 else -1 for word in words
    ]
    return None if min(digits) < 0 else digits


def _changed_digits(grid: Sequence[int], size: int, shown: Sequence[int] | None) -> tuple[Assignment, ...]:
    """The assignments for the digits of a grid that the shown one doesn't have."""
    before = shown if shown is not None else [0] * len(grid)
    return tuple(
        (*divmod(cell, size), digit) for cell, digit in enumerate(grid) if digit and digit != before[cell]
    )
