"""The environment `sudoku`: a planner proposes digits, an executor writes them into cells.

Rewards. Source: PettingLLMs, arXiv 2510.11062 (Sudoku), whose environment checks neither the clues nor that
the solution is unique. Here a cell counts once, where it is as in the only solution: writing a right digit
again, or wrong and right digits in turn, earns nothing.

Guarantees for every message (refilling, spoiling and fixing, clues, thousands of assignments):

- Immediate credit, with either form: from any grid, with or without `max_cells`, no message has a component
  above that of the oracle's message (`illegal`, `empty`: below); so none earns more, whatever the weights. A
  plan in the compact rendering can name open cells only, and the oracle's is the best of those. A message
  after which no fewer cells are left earns the team nothing.
- Summed returns, with `potential`: with potentials as differences and counterfactuals left out, an episode's
  team components add up to (first - last) / first, at most 1, and no episode returns more than the oracle's,
  under any discount. With `progress` there is no such bound: hence `not_summable`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from coterie.core.types import Task
from coterie.core.types.splits import Split
from coterie.plugins.envs.board.effects import components, weights
from coterie.plugins.envs.board.game import BoardGame, GameConfig
from coterie.plugins.envs.board.parsing import cell_word, write
from coterie.plugins.envs.board.values import BoardPlan
from coterie.plugins.envs.common.code import printing_program
from coterie.plugins.envs.sudoku import messages
from coterie.plugins.envs.sudoku.grid import (
    DEFAULT_BLANKS,
    FEWEST_CLUES,
    Puzzle,
    drawn_puzzle,
    fingerprints,
    puzzle_of,
    record_of,
    solved,
)
from coterie.plugins.envs.sudoku.messages import Assignment, Fill, fill
from coterie.plugins.envs.sudoku.state import WORDING, SudokuObservation, SudokuState, picture


class Sudoku(BoardGame):
    """Fill a grid so that every row, column and box holds every digit, over several turns.

    Source: Sudoku 4x4 of PettingLLMs, arXiv 2510.11062; success is a full, valid grid that keeps the clues.
    What differs here and why: every puzzle has one solution and clues can't be overwritten (there one grid
    solves every puzzle); the splits are disjoint by the solution; no episode earns the team's reward
    repeatedly (see above); planner and executor may write in different languages and see different
    parts.

    Roles: `planner` and `tool` (their messages don't fill the grid), `executor`, `plan` (sees the tool's
    program and decides), `solver` (alone).
    """

    class Config(GameConfig):
        size: int = Field(4, description="Rows, columns and digits: 4, 9 or 16.")
        blanks: int | None = Field(
            None, ge=1, description="Empty cells at the start; null: 6, 40 or 90 by the size."
        )
        max_cells: int | None = Field(
            None, ge=1, description="The most assignments of a message that are played; null: all."
        )
        team: Literal["progress", "potential"] = Field(
            "progress",
            description="The team's reward: `progress` for immediate credit, "
            "`potential` for returns that sum over turns.",
        )
        # Unlike a move, an assignment means the same after an illegal one.
        illegal: Literal["stop", "skip"] = Field(
            "skip", description="Stop at an illegal assignment of a message, or skip it."
        )
        plan_language: messages.PlanLanguage = Field(
            "digits", description="The planner's digits in the compact rendering: `3`, or `c`."
        )
        views: Literal["full", "split"] = Field(
            "full",
            description="`split`: the planner sees the grid; the executor the names of the open cells and "
            "the plan.",
        )

        @field_validator("size")
        @classmethod
        def _square(cls, size: int) -> int:
            if size not in DEFAULT_BLANKS:
                raise ValueError(f"a box is a square: one of {', '.join(map(str, DEFAULT_BLANKS))}")
            return size

        @model_validator(mode="after")
        def _possible(self) -> Sudoku.Config:
            most = self.size**2 - FEWEST_CLUES.get(self.size, 1)
            if self.blanks is not None and self.blanks > most:
                raise ValueError(
                    f"blanks: at most {most} at size {self.size}; with fewer clues no solution is unique"
                )
            if self.plan_language == "letters" and self.rendering == "prose":
                raise ValueError("plan_language: letters is for the compact rendering; prose names digits")
            return self

    config: Config
    quality = "correct"
    components = components(quality)
    weights = weights(components, quality)
    left_name = "cells_left"
    wording = WORDING

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        self.size = config.size
        self.limit, self.skip = config.max_cells, config.illegal == "skip"
        self._blanks = config.blanks if config.blanks is not None else DEFAULT_BLANKS[config.size]
        self.attempts = 20_000 // self.size**2
        self.drawn_as = f"sudoku|{self.size}"

    # ---- tasks ---------------------------------------------------------------------------------------------

    def drawn(self, purpose: str, split: Split) -> Puzzle | None:
        return drawn_puzzle(purpose, split, self.size, self._blanks)

    def scarce(self) -> tuple[str, str, str, str]:
        return (
            "puzzle",
            f"{self.build.path}.blanks",
            f"{self.size}x{self.size} grids with {self._blanks} empty cells hardly ever have one solution",
            "use fewer blanks",
        )

    def record(self, task: Task) -> dict[str, Any]:
        """The task as JSON (see `record_of`)."""
        return record_of(task.payload)

    def task_of(self, record: Mapping[str, Any], id: str) -> Task:
        """The task of a record.

        Raises:
            ValueError: the record is no Sudoku of this size with one solution.
        """
        return Task(id=id, payload=puzzle_of(record, self.size))

    def fingerprints(self, task: Task) -> Mapping[str, str]:
        """What no two splits may share: `content` (the clues) and `solution`."""
        return fingerprints(task.payload)

    def picture(self, task: Task) -> str:
        """The clues, for people."""
        return "\n".join(picture(task.payload.size, task.payload.clues))

    # ---- the game ------------------------------------------------------------------------------------------

    def reset(self, task: Task, seed: int) -> SudokuState:
        """The state at the start, without a random draw."""
        puzzle: Puzzle = task.payload
        return SudokuState(puzzle=puzzle, grid=puzzle.clues)

    def observe(self, state: SudokuState, role: str) -> SudokuObservation:
        puzzle, sees = state.puzzle, self._sees_grid(role)
        plan = state.plan if role in ("executor", "plan") else None
        return SudokuObservation(
            **self.seen(state, role),
            size=puzzle.size,
            open=tuple(map(puzzle.cell, state.open)),
            clues=puzzle.clues if sees else None,
            grid=state.grid if sees else None,
            clashing=tuple(map(puzzle.cell, sorted(state.clashing))) if sees else None,
            plan=plan.items if plan is not None and plan.fork is not None else None,
            plan_language=self.config.plan_language,
            max_cells=self.config.max_cells,
        )

    def outcome(self, state: SudokuState) -> dict[str, float]:
        """`success`, by the rules and not by the oracle; the number of fills; cells still empty or wrong."""
        won = solved(state.puzzle.size, state.grid, state.puzzle.clues)
        return {**super().outcome(state), "success": float(won)}

    def items_of(self, state: SudokuState, parsed: Any) -> tuple[Assignment, ...] | None:
        """The assignments of a parsed action or a text; of a grid only the digits that it changes count."""
        return messages.as_assignments(parsed, self.size, state.grid)

    def effect(self, state: SudokuState, items: Sequence[Assignment]) -> Fill:
        return fill(state.puzzle, state.grid, items, limit=self.limit, skip=self.skip)

    async def _propose(self, state: SudokuState, role: str, parsed: Any) -> BoardPlan:
        plan = await super()._propose(state, role, parsed)
        return replace(plan, items=() if plan.fork is None else plan.fork.items)

    def changes(self, effect: Fill) -> dict[str, Any]:
        return {"grid": effect.end}

    def first(self, state: SudokuState) -> int:
        return state.puzzle.blanks

    def quality_of(self, state: SudokuState, effect: Fill) -> float:
        """`correct`: the share of the assignments that made a cell right."""
        return effect.correct

    def info(self, state: SudokuState, effect: Fill) -> dict[str, Any]:
        return {
            "readable": True,
            "assignments": [list(assignment) for assignment in effect.items],
            "illegal": [list(refused) for refused in effect.illegal],
            "gained": effect.gained,
        }

    def _sees_grid(self, role: str) -> bool:
        return not (self.config.views == "split" and role == "executor")

    # ---- feedback ------------------------------------------------------------------------------------------

    # It contains only what follows from the role's own message and the grid that it sees, and never which
    # digits are right.

    def effect_feedback(self, state: SudokuState, role: str) -> str:
        filled = super().effect_feedback(state, role)
        clashes = self._clashes(state) if self._sees_grid(role) else ""
        return f"{filled} {clashes}" if clashes else filled

    def _clashes(self, state: SudokuState) -> str:
        """A sentence on the filled cells that clash now; empty for none."""
        size, clashing, effect = state.puzzle.size, state.clashing, state.last_effect
        touched = {
            row * size + column
            for row, column, _ in effect.items[: effect.tried]
            if state.puzzle.index((row, column)) in clashing
        }
        words = [f"{cell_word(divmod(cell, size))} ({state.grid[cell]})" for cell in sorted(touched)]
        return f"Of these cells clash with an equal digit now: {', '.join(words)}." if words else ""

    # ---- words, oracle -------------------------------------------------------------------------------------

    def vocabulary(self) -> Iterable[str]:
        """Every word of the compact rendering at this size."""
        return messages.vocabulary(self.size, self.config.plan_language)

    def demonstrate(self, state: SudokuState, role: str, noise: float, rng: np.random.Generator) -> str:
        """The oracle's message: empty and wrong cells, each digit random with probability `noise`.

        In the compact rendering a planner names digits of open cells only. For an executor that doesn't see
        the grid it is the current plan. For the tool it is a program that prints the list.
        """
        compact_plan = role == "planner" and self.config.rendering == "compact"
        planned = self.legal_items(state.plan) if role == "executor" and self.config.views == "split" else ()
        assignments = [
            (row, column, int(rng.integers(1, self.size + 1)) if rng.random() < noise else digit)
            for row, column, digit in planned or self._oracle(state, state.open if compact_plan else None)
        ][: self.config.max_cells]
        if compact_plan:
            return self._plan_words(state, assignments)
        words = [messages.assignment_word(assignment) for assignment in assignments]
        message = write(words, self.config.rendering)
        return printing_program(message) if role == "tool" else message

    def _oracle(self, state: SudokuState, cells: Sequence[int] | None) -> tuple[Assignment, ...]:
        """The right digits of the empty and wrong cells among `cells` (default: all), in reading order."""
        solution, all_cells = state.puzzle.solution, range(len(state.grid))
        return tuple(
            (*state.puzzle.cell(cell), solution[cell])
            for cell in (cells if cells is not None else all_cells)
            if state.grid[cell] != solution[cell]
        )

    def _plan_words(self, state: SudokuState, assignments: Sequence[Assignment]) -> str:
        """The planner's words for assignments to open cells."""
        digits = {(row, column): digit for row, column, digit in assignments}
        words = [
            messages.plan_word(digits[cell], self.config.plan_language)
            if cell in digits
            else messages.NOTHING
            for cell in map(state.puzzle.cell, state.open)
        ]
        while words and words[-1] == messages.NOTHING:
            words.pop()
        return " ".join(words)
