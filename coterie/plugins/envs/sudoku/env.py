"""The environment `sudoku`: a planner proposes digits, an executor writes them into cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from coterie.core.types import Task
from coterie.core.types.splits import Split
from coterie.plugins.envs.common.code import printing_program, propose
from coterie.plugins.envs.common.parsing import write
from coterie.plugins.envs.common.turn_game import Game, GameConfig
from coterie.plugins.envs.sudoku import feedback, messages, tasks as puzzles
from coterie.plugins.envs.sudoku.fills import Assignment, Fill, fill, still_wrong
from coterie.plugins.envs.sudoku.grid import (
    DEFAULT_BLANKS,
    FEWEST_CLUES,
    Puzzle,
    Puzzles,
    fingerprints,
    solved,
)
from coterie.plugins.envs.sudoku.render import picture
from coterie.plugins.envs.sudoku.rewards import COMPONENTS, WEIGHTS, Form, local_rewards, team_rewards
from coterie.plugins.envs.sudoku.state import Observation, Plan, State


class Sudoku(Game):
    """Fill a grid so that every row, column and box holds every digit, over several turns.

    Source: Sudoku 4x4 of PettingLLMs, arXiv 2510.11062; success is a full, valid grid that keeps the clues.
    What differs here and why: every puzzle has one solution and clues can't be overwritten (there one grid
    solves every puzzle); the splits are disjoint by the solution; no episode earns the team's reward
    repeatedly (see `rewards.py`); planner and executor may write in different languages and see different
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
        team: Form = Field(
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
    components = COMPONENTS
    weights = WEIGHTS

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        self.size = config.size
        self._skip = config.illegal == "skip"

    # ---- the game ------------------------------------------------------------------------------------------

    def _generated(self, split: Split, seed: int) -> Puzzles:
        blanks = self.config.blanks if self.config.blanks is not None else DEFAULT_BLANKS[self.size]
        count = self.config.task_count(split)
        return Puzzles(
            split=split, seed=seed, count=count, size=self.size, blanks=blanks, path=self.build.path
        )

    def reset(self, task: Task, seed: int) -> State:
        """The state at the start, without a random draw."""
        puzzle: Puzzle = task.payload
        return State(puzzle=puzzle, grid=puzzle.clues)

    def observe(self, state: State, role: str) -> Observation:
        puzzle, sees = state.puzzle, self._sees_grid(role)
        plan = state.plan if role in ("executor", "plan") else None
        return Observation(
            role=role,
            turn=state.turn,
            size=puzzle.size,
            open=tuple(map(puzzle.cell, state.open)),
            clues=puzzle.clues if sees else None,
            grid=state.grid if sees else None,
            clashing=tuple(map(puzzle.cell, sorted(state.clashing))) if sees else None,
            plan=plan.assignments if plan is not None else None,
            program=plan.run if plan is not None else None,
            plan_language=self.config.plan_language,
            rendering=self.config.rendering,
            max_cells=self.config.max_cells,
        )

    def outcome(self, state: State) -> dict[str, float]:
        """`success`, by the rules and not by the oracle; the number of fills; cells still empty or wrong."""
        won = solved(state.puzzle.size, state.grid, state.puzzle.clues)
        return {"success": float(won), "turns": float(state.turn), "cells_left": float(state.left)}

    # ---- tasks as data -------------------------------------------------------------------------------------

    def record(self, task: Task) -> dict[str, Any]:
        """The task as JSON (see `tasks.py`)."""
        return puzzles.record(task)

    def task_of(self, record: Mapping[str, Any], id: str) -> Task:
        """The task of a record.

        Raises:
            ValueError: the record is no Sudoku of this size with one solution.
        """
        return puzzles.task_of(record, id, self.size)

    def fingerprints(self, task: Task) -> Mapping[str, str]:
        """What no two splits may share: `content` (the clues) and `solution`."""
        return fingerprints(task.payload)

    def picture(self, task: Task) -> str:
        """The clues, for people."""
        return "\n".join(picture(task.payload.size, task.payload.clues))

    # ---- the optional part ---------------------------------------------------------------------------------

    def diagnose(self, state: State, role: str) -> str:
        """Feedback on the role's last message; empty in its first turn."""
        return feedback.last_turn(state, role, skip=self._skip, sees_grid=self._sees_grid(role))

    def vocabulary(self) -> Iterable[str]:
        """Every word of the compact rendering at this size."""
        return messages.vocabulary(self.size, self.config.plan_language)

    def demonstrate(self, state: State, role: str, noise: float, rng: np.random.Generator) -> str:
        """The oracle's message: empty and wrong cells, each digit random with probability `noise`.

        In the compact rendering a planner names digits of open cells only. For an executor that doesn't see
        the grid it is the current plan. For the tool it is a program that prints the list.
        """
        compact_plan = role == "planner" and self.config.rendering == "compact"
        planned = self._planned(state) if role == "executor" and self.config.views == "split" else ()
        assignments = [
            (row, column, int(rng.integers(1, self.size + 1)) if rng.random() < noise else digit)
            for row, column, digit in planned or self._oracle(state, state.open if compact_plan else None)
        ][: self.config.max_cells]
        if compact_plan:
            return self._plan_words(state, assignments)
        words = [messages.assignment_word(assignment) for assignment in assignments]
        message = write(words, self.config.rendering)
        return printing_program(message) if role == "tool" else message

    # ---- inside --------------------------------------------------------------------------------------------

    def _sees_grid(self, role: str) -> bool:
        return not (self.config.views == "split" and role == "executor")

    def _team_rewards(self, state: State, effect: Fill | None) -> dict[str, float]:
        left = state.left if effect is None else still_wrong(state.puzzle, effect.end)
        return team_rewards(self.config.team, state.left, left, state.puzzle.blanks)

    def _local_rewards(self, state: State, effect: Fill | None, *, empty: bool) -> dict[str, float]:
        return local_rewards(effect, empty=empty)

    def _info(self, state: State, effect: Fill) -> dict[str, Any]:
        return {
            "readable": True,
            "assignments": [list(assignment) for assignment in effect.assignments],
            "illegal": [list(refused) for refused in effect.illegal],
            "gained": effect.gained,
        }

    def _changes(self, effect: Fill) -> dict[str, Any]:
        return {"grid": effect.end, "last_fill": effect}

    def _fill(self, state: State, assignments: Sequence[Assignment]) -> Fill:
        return fill(state.puzzle, state.grid, assignments, limit=self.config.max_cells, skip=self._skip)

    def _read(self, state: State, parsed: Any) -> Fill | None:
        assignments = messages.as_assignments(parsed, self.size, state.grid)
        return None if assignments is None else self._fill(state, assignments)

    async def _propose(self, state: State, role: str, parsed: Any) -> Plan:
        if role == "planner":
            return Plan(fork=self._read(state, parsed))

        def read(text: str) -> tuple[Assignment, ...]:
            # As for a message: only the new digits of a printed grid count.
            return messages.read_assignments(text, "prose", self.size, state.grid)

        run, proposal = await propose(self.config.sandbox, parsed, read)
        return Plan(author="tool", run=run, fork=None if proposal is None else self._fill(state, proposal))

    def _planned(self, state: State) -> tuple[Assignment, ...]:
        """The legal assignments of the plan."""
        fork = state.plan.fork if state.plan is not None else None
        if fork is None:
            return ()
        refused = {number for number, _ in fork.illegal}
        return tuple(
            assignment
            for number, assignment in enumerate(fork.assignments[: fork.tried], 1)
            if number not in refused
        )

    def _oracle(self, state: State, cells: Sequence[int] | None) -> tuple[Assignment, ...]:
        """The right digits of the empty and wrong cells among `cells` (default: all), in reading order."""
        solution, all_cells = state.puzzle.solution, range(len(state.grid))
        return tuple(
            (*state.puzzle.cell(cell), solution[cell])
            for cell in (cells if cells is not None else all_cells)
            if state.grid[cell] != solution[cell]
        )

    def _plan_words(self, state: State, assignments: Sequence[Assignment]) -> str:
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
