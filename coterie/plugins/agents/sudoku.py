"""Roles of Sudoku: planner and executor, tool and plan, and the solver that plays alone."""

from __future__ import annotations

from typing import Any

from coterie.plugins.agents.games import GameRole
from coterie.plugins.envs.common.parsing import Rendering
from coterie.plugins.envs.sudoku import messages, render
from coterie.plugins.envs.sudoku.state import Observation


class SudokuRole(GameRole):
    """A role of Sudoku."""

    game = "sudoku"

    def compact(self, seen: Observation) -> str:
        return render.compact(seen)

    def prose(self, seen: Observation, feedback: tuple[str, ...]) -> str:
        return render.prose(seen, feedback)

    def read(self, text: str, seen: Observation, rendering: Rendering) -> Any:
        """Assignments as (row, column, digit)."""
        if seen.role == "planner" and rendering == "compact":
            return messages.read_plan(text, seen.open, seen.size, seen.plan_language)
        return messages.read_assignments(text, rendering, seen.size, seen.grid)


_RULES = (
    "Every row, every column and every box must hold every digit once. Given digits can't be changed; "
    "digits that were filled in can. An assignment such as r0c1=3 writes 3 into row 0, column 1. "
)
_END = "Think briefly, and end with a list of assignments in square brackets."


class SudokuPlanner(SudokuRole):
    """Proposes digits; doesn't fill cells."""

    role = "planner"
    task = (
        "You are the planner of a team of two that solves a Sudoku. You say which digits belong where; the "
        f"executor fills them in. {_RULES}{_END}"
    )


class SudokuExecutor(SudokuRole):
    """Writes the assignments that the environment plays."""

    role = "executor"
    task = (
        "You are the executor of a team of two that solves a Sudoku. The planner says which digits belong "
        f"where; you adopt or overrule it, and your assignments are played. {_RULES}{_END}"
    )


class SudokuSolver(SudokuRole):
    """Plays alone, with the same turns and feedback as the team."""

    role = "solver"
    task = f"You solve a Sudoku. Your assignments are played. {_RULES}{_END}"


class SudokuTool(SudokuRole):
    """Writes a program whose output is its proposal."""

    role = "tool"
    task = (
        "You are the programmer of a team of two that solves a Sudoku. You write a Python program that finds "
        f"the missing digits; your partner sees it and what it prints, and decides. {_RULES}"
        "The program gets no input, so write the grid into it. Think briefly, and end with the whole program "
        "in one ```python block; it must print the assignments as a list."
    )


class SudokuPlan(SudokuRole):
    """Sees the tool's program and its output, and writes the assignments that the environment plays."""

    role = "plan"
    task = (
        "You are the decider of a team of two that solves a Sudoku. Your partner wrote a program; you see it "
        f"and what it printed, adopt or overrule it, and your assignments are played. {_RULES}{_END}"
    )
