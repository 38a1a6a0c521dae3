"""Prompts of Sudoku: words at stable places, or English with a picture.

In the compact form the n-th word after the role is the n-th cell: a digit, `?3` for one that clashes, or the
cell's own name where it is empty. So a model with one token per word learns position and content together.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

from coterie.plugins.envs.common.code import program_lines
from coterie.plugins.envs.common.grid import Cell
from coterie.plugins.envs.common.parsing import cell_word
from coterie.plugins.envs.sudoku.messages import NOTHING, assignment_list, plan_word
from coterie.plugins.envs.sudoku.state import Observation


def compact(seen: Observation) -> str:
    """`planner 1 r0c1 3 ?3 ... :`; `executor r0c1 b r2c3 - :` for an executor that doesn't see the grid,
    `executor 1 r0c1 3 ?3 ... plan r0c1 b r2c3 - :` for one that does."""
    words = [seen.role, *_cells(seen)]
    if seen.role == "executor":
        words += ["plan"] * (seen.grid is not None) + _planned(seen)
    return " ".join([*words, ":"])


def _cells(seen: Observation) -> list[str]:
    if seen.grid is None:
        return []
    clashing = set(seen.clashing or ())
    words = []
    for index, digit in enumerate(seen.grid):
        cell = divmod(index, seen.size)
        words.append(cell_word(cell) if not digit else f"?{digit}" if cell in clashing else str(digit))
    return words


def _planned(seen: Observation) -> list[str]:
    """Each open cell and the plan's word for it; other cells of a plan in prose come last."""
    digits: dict[Cell, int] = {}
    for row, column, digit in seen.plan or ():
        if 0 <= row < seen.size and 0 <= column < seen.size and 1 <= digit <= seen.size:
            digits[row, column] = digit
    words = []
    for cell in (*seen.open, *(cell for cell in digits if cell not in seen.open)):
        word = plan_word(digits[cell], seen.plan_language) if cell in digits else NOTHING
        words += [cell_word(cell), word]
    return words


# --------------------------------------------------------------------------------------------------- prose


def prose(seen: Observation, feedback: tuple[str, ...] = ()) -> str:
    """English, with a picture if the role sees the grid."""
    size, box = seen.size, isqrt(seen.size)
    lines = [
        f"Turn {seen.turn + 1}. A Sudoku of {size} rows (r0 at the top) and {size} columns (c0 at the left), "
        f"with boxes of {box} by {box} and the digits 1 to {size}."
    ]
    if seen.grid is not None and seen.clues is not None:
        lines += ["'.' is an empty cell.", "", *picture(size, seen.grid), ""]
        filled = [
            (*divmod(index, size), digit)
            for index, digit in enumerate(seen.grid)
            if digit and not seen.clues[index]
        ]
        if filled:
            lines.append(
                f"Filled in so far, and open to change: {assignment_list(filled)}. The others are given."
            )
        if seen.clashing:
            lines.append(f"These clash with an equal digit: {_cell_list(seen.clashing)}.")
    else:
        lines.append(f"Cells that are empty or clash: {_cell_list(seen.open)}.")
    proposal = None if seen.plan is None else assignment_list(seen.plan)
    lines += program_lines(seen.program, proposal, "assignments")
    if seen.role == "executor":
        lines.append(f"The planner says: {assignment_list(seen.plan or ())}.")
    lines += feedback
    lines.append(_task(seen))
    return "\n".join(lines)


def picture(size: int, grid: Sequence[int]) -> list[str]:
    """The grid in lines, with rules between the boxes."""
    box, width = isqrt(size), len(str(size))
    rows = []
    for row in range(size):
        words = [f"{digit or '.':>{width}}" for digit in grid[row * size : (row + 1) * size]]
        parts = [" ".join(words[start : start + box]) for start in range(0, size, box)]
        if row and row % box == 0:
            rows.append("-+-".join("-" * len(part) for part in parts))
        rows.append(" | ".join(parts))
    return rows


def _task(seen: Observation) -> str:
    limit = f" (at most {seen.max_cells})" if seen.max_cells is not None else ""
    if seen.role == "tool":
        return (
            "Your program, in one ```python block; the last list that it prints, such as [r0c1=3, r2c3=1], "
            f"is your proposal of assignments{limit}, and so is a whole grid:"
        )
    whose = "The assignments that should be played" if seen.role == "planner" else "Your assignments"
    return f"{whose} as a list such as [r0c1=3, r2c3=1]{limit}:"


def _cell_list(cells: Sequence[Cell]) -> str:
    return ", ".join(map(cell_word, cells))
