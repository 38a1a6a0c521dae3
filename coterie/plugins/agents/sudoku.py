"""Roles of Sudoku: planner and executor, tool and plan, and the solver that plays alone."""

from coterie.plugins.agents.games import GameRole, system_prompts

PROMPTS = system_prompts(
    "solve",
    "a Sudoku",
    "Every row, every column and every box must hold every digit once. Given digits can't be changed; "
    "digits that were filled in can. An assignment such as r0c1=3 writes 3 into row 0, column 1. ",
    "which digits belong where",
    "fills them in",
    "the missing digits",
    items="assignments",
)
"""By role."""


class SudokuPlanner(GameRole):
    """Proposes digits; doesn't fill cells."""

    game, role, task = "sudoku", "planner", PROMPTS["planner"]


class SudokuExecutor(GameRole):
    """Writes the assignments that the environment plays."""

    game, role, task = "sudoku", "executor", PROMPTS["executor"]


class SudokuSolver(GameRole):
    """Plays alone, with the same turns and feedback as the team."""

    game, role, task = "sudoku", "solver", PROMPTS["solver"]


class SudokuTool(GameRole):
    """Writes a program whose output is its proposal."""

    game, role, task = "sudoku", "tool", PROMPTS["tool"]


class SudokuPlan(GameRole):
    """Sees the tool's program and its output, and writes the assignments that the environment plays."""

    game, role, task = "sudoku", "plan", PROMPTS["plan"]
