"""Roles of Plan-Path: the planner, the executor, and the solver that plays alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import Field

from coterie.core.config import PluginConfig
from coterie.core.errors import ConfigError
from coterie.core.plugins import Plugin
from coterie.core.types import Briefing, Message
from coterie.plugins.envs.plan_path import language, render
from coterie.plugins.envs.plan_path.state import Observation


class PlanPathRole(Plugin):
    """A seat in Plan-Path. What it sees and which language it writes are the environment's to say."""

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
                why="the environment plan_path tells roles apart by name",
                mend=f"name the role '{self.seat}', or give it type plan_path_{build.name}",
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
        """Moves, e.g. ("U", "R"), legs, e.g. ("R2", "D1"), or way-points as (row, column); () of an empty
        message.

        Raises:
            PolicyFault: the text is no list of those.
        """
        rendering = self._rendering(observation)
        if observation.writes == "moves":
            return language.read_moves(text, rendering)
        if observation.writes == "legs":
            return language.read_legs(text, rendering)
        return language.read_waypoints(text, rendering, observation.position, observation.waypoint_words)

    def vocabulary(self) -> Iterable[str]:
        """Nothing beyond the environment's words."""
        return ()

    def _rendering(self, seen: Observation) -> language.Rendering:
        return self.config.rendering or seen.rendering


RULES = (
    "Moves go up (U), down (D), left (L) or right (R) by one cell; "
    "a move can't enter a wall or leave the grid. "
)


class PlanPathPlanner(PlanPathRole):
    """Names the way; doesn't move."""

    seat = "planner"
    task = (
        "You are the planner of a team of two that finds the way through a grid with walls. You say "
        f"which way to go; the executor moves. {RULES}Think briefly, and end with a list in square brackets."
    )


class PlanPathExecutor(PlanPathRole):
    """Writes the moves that are played."""

    seat = "executor"
    task = (
        "You are the executor of a team of two that finds the way through a grid with walls. The planner "
        f"says which way to go; you adopt or overrule it, and your moves are played. {RULES}"
        "Think briefly, and end with a list of moves in square brackets."
    )


class PlanPathSolver(PlanPathRole):
    """Plays alone, with the same turns and feedback as the team."""

    seat = "solver"
    task = (
        f"You find the way through a grid with walls. Your moves are played. {RULES}"
        "Think briefly, and end with a list of moves in square brackets."
    )
