"""Roles of Sudoku: planner and executor, tool and plan, and the solver that plays alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import Field

from coterie.core.config import PluginConfig
from coterie.core.errors import ConfigError
from coterie.core.plugins import Plugin
from coterie.core.types import Briefing, Message
from coterie.plugins.envs.games import read_program
from coterie.plugins.envs.sudoku import language, render
from coterie.plugins.envs.sudoku.state import Observation


class SudokuRole(Plugin):
    """A seat in Sudoku. What it sees and which language it writes are the environment's to say."""

    class Config(PluginConfig):
        rendering: language.Rendering | None = Field(None, description="Instead of the environment's.")
        system: str | None = Field(
            None, description="System prompt of the prose rendering; null: the built-in one."
        )

    config: Config
    seat: str = ""
    task: str = ""

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        if build.name != self.seat:
            raise ConfigError(
                f"role '{build.name}' can't sit in the {self.seat}'s seat",
                path=f"{build.path}.type",
                why="the environment sudoku tells roles apart by name",
                mend=f"name the role '{self.seat}', or give it type sudoku_{build.name}",
            )

    def render(self, briefing: Briefing) -> Sequence[Message]:
        """One user message of words, or a system and a user message of prose.

        Raises:
            ConfigError: notes for the compact rendering, which has no words for them.
        """
        seen: Observation = briefing.observation
        if self._rendering(seen) == "prose":
            system = self.task if self.config.system is None else self.config.system
            user = {"role": "user", "content": render.prose(seen, briefing.notes)}
            return [{"role": "system", "content": system}, user] if system else [user]
        if briefing.notes:
            raise ConfigError(
                "the compact rendering has no words for what the transition mode tells",
                path=self.build.path,
                why=f"it told: {briefing.notes[-1]!r}",
                mend="set transition: plain, or env.rendering: prose",
            )
        return [{"role": "user", "content": render.compact(seen)}]

    def parse(self, text: str, observation: Observation) -> Any:
        """Assignments as (row, column, digit); () of an empty message.

        Raises:
            PolicyFault: the text is no list of those.
        """
        rendering = self._rendering(observation)
        if observation.role == "planner" and rendering == "compact":
            return language.read_plan(text, observation.open, observation.size, observation.plan_language)
        return language.read_assignments(text, rendering, observation.size, observation.grid)

    def vocabulary(self) -> Iterable[str]:
        """Nothing beyond the environment's words."""
        return ()

    def _rendering(self, seen: Observation) -> language.Rendering:
        return self.config.rendering or seen.rendering


class ProseRole(SudokuRole):
    """A seat that the compact rendering has no words for."""

    def __init__(self, config: SudokuRole.Config, build: Any) -> None:
        super().__init__(config, build)
        if config.rendering == "compact":
            raise ConfigError(
                f"the seat '{self.seat}' is for the prose rendering",
                path=f"{build.path}.rendering",
                why="the compact one has no words for a program",
                mend="remove it",
            )


_RULES = (
    "Every row, every column and every box must hold every digit once. Given digits can't be changed; "
    "digits that were filled in can. An assignment such as r0c1=3 writes 3 into row 0, column 1. "
)
_END = "Think briefly, and end with a list of assignments in square brackets."


class SudokuPlanner(SudokuRole):
    """Names digits; doesn't fill them in."""

    seat = "planner"
    task = (
        "You are the planner of a team of two that solves a Sudoku. You say which digits belong where; the "
        f"executor fills them in. {_RULES}{_END}"
    )


class SudokuExecutor(SudokuRole):
    """Writes the assignments that are played."""

    seat = "executor"
    task = (
        "You are the executor of a team of two that solves a Sudoku. The planner says which digits belong "
        f"where; you adopt or overrule it, and your assignments are played. {_RULES}{_END}"
    )


class SudokuSolver(SudokuRole):
    """Plays alone, with the same turns and feedback as the team."""

    seat = "solver"
    task = f"You solve a Sudoku. Your assignments are played. {_RULES}{_END}"


class SudokuTool(ProseRole):
    """Writes a program; what it prints is the proposal."""

    seat = "tool"
    task = (
        "You are the programmer of a team of two that solves a Sudoku. You write a Python program that finds "
        f"the missing digits; your partner sees it and what it prints, and decides. {_RULES}"
        "The program gets no input, so write the grid into it. Think briefly, and end with the whole program "
        "in one ```python block; it must print the assignments as a list."
    )

    def parse(self, text: str, observation: Observation) -> str:
        """The program; "" of an empty message.

        Raises:
            PolicyFault: the text holds no closed block of Python.
        """
        return read_program(text)


class SudokuPlan(ProseRole):
    """Sees the tool's program and what it printed; writes the assignments that are played."""

    seat = "plan"
    task = (
        "You are the decider of a team of two that solves a Sudoku. Your partner wrote a program; you see it "
        f"and what it printed, adopt or overrule it, and your assignments are played. {_RULES}{_END}"
    )
