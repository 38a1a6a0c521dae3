"""Roles of Sokoban: planner and executor, tool and plan, and the solver that plays alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import Field

from coterie.core.config import PluginConfig
from coterie.core.errors import ConfigError
from coterie.core.plugins import Plugin
from coterie.core.types import Briefing, Message
from coterie.plugins.envs.games import read_program
from coterie.plugins.envs.sokoban import language, render
from coterie.plugins.envs.sokoban.state import Observation


class SokobanRole(Plugin):
    """A seat in Sokoban. What it sees and which language it writes are the environment's to say."""

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
                why="the environment sokoban tells roles apart by name",
                mend=f"name the role '{self.seat}', or give it type sokoban_{build.name}",
            )
        if config.rendering == "compact" and self.seat not in language.COMPACT_ROLES:
            raise ConfigError(
                f"the role '{self.seat}' has no words in the compact rendering",
                path=f"{build.path}.rendering",
                mend="set rendering: prose",
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
        """Moves, e.g. ("U", "R"); pushes as ((row, column) or None, direction); or a program.

        Raises:
            PolicyFault: the text is no list of those, or has no program.
        """
        rendering = self._rendering(observation)
        if observation.writes == "code":
            return read_program(text)
        if observation.writes == "moves":
            return language.read_moves(text, rendering)
        return language.read_pushes(text, rendering, observation.player, observation.push_words)

    def vocabulary(self) -> Iterable[str]:
        """Nothing beyond the environment's words."""
        return ()

    def _rendering(self, seen: Observation) -> language.Rendering:
        return self.config.rendering or seen.rendering


_RULES = (
    "The player moves up (U), down (D), left (L) or right (R) by one cell; moving into a box pushes it one "
    "cell on, if what is beyond is free. Boxes can't be pulled, nor two pushed at once; nothing enters a "
    "wall or leaves the grid. The board is solved when every box is on a target. "
)


class SokobanPlanner(SokobanRole):
    """Names pushes; doesn't move."""

    seat = "planner"
    task = (
        "You are the planner of a team of two that solves Sokoban. You say which pushes to make; the "
        f"executor walks and makes them. {_RULES}Think briefly, and end with a list in square brackets."
    )


class SokobanExecutor(SokobanRole):
    """Writes the moves that are played."""

    seat = "executor"
    task = (
        "You are the executor of a team of two that solves Sokoban. The planner says which pushes to make; "
        f"you adopt or overrule it, and your moves are played. {_RULES}"
        "Think briefly, and end with a list of moves in square brackets."
    )


class SokobanSolver(SokobanRole):
    """Plays alone, with the same turns and feedback as the team."""

    seat = "solver"
    task = (
        f"You solve Sokoban. Your moves are played. {_RULES}"
        "Think briefly, and end with a list of moves in square brackets."
    )


class SokobanTool(SokobanRole):
    """Writes a program whose printed moves are a proposal; doesn't move."""

    seat = "tool"
    task = (
        "You are the tool user of a team of two that solves Sokoban. You write a Python program that finds "
        "the moves and prints them; your partner sees the program and what it printed, and moves. "
        f"{_RULES}The program gets no input, so write the board into it. Think briefly, and end with the "
        "whole program in one ```python block; it must print the moves as a list."
    )


class SokobanPlan(SokobanRole):
    """Sees the tool's program and what it printed; writes the moves that are played."""

    seat = "plan"
    task = (
        "You decide the moves of a team of two that solves Sokoban. Your partner wrote a program that "
        f"proposes moves; you adopt or overrule it, and your moves are played. {_RULES}"
        "Think briefly, and end with a list of moves in square brackets."
    )
