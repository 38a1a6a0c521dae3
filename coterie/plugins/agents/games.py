"""The base of the games' roles: one prompt, compact or in prose, with feedback; and which names they
accept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from coterie.core.errors import ConfigError
from coterie.core.plugins import PluginConfig
from coterie.core.types import Message, RoleInput
from coterie.plugins.agents.roles import CompactRole
from coterie.plugins.envs.board.roles import PROSE_ROLES
from coterie.plugins.envs.common.code import read_program
from coterie.plugins.envs.common.teams import Rendering


class GameRole(CompactRole):
    """A role of a game. Its observation writes the prompts and reads its messages."""

    class Config(PluginConfig):
        rendering: Rendering | None = Field(
            None, description="How prompts are written; null: the environment's rendering."
        )
        system: str | None = Field(
            None, description="System prompt of the prose rendering; null: the built-in one."
        )

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        if config.rendering == "compact" and self.role in PROSE_ROLES:
            raise ConfigError(
                f"the role '{self.role}' needs the prose rendering",
                path=f"{build.path}.rendering",
                why="the compact one can't show a program",
                fix="remove it",
            )

    def render(self, role_input: RoleInput) -> Sequence[Message]:
        """One user message in the compact rendering; a system and a user message in prose.

        Raises:
            ConfigError: the compact rendering gets feedback, which it can't show.
        """
        seen = role_input.observation
        if self._rendering(seen) == "prose":
            return self.messages(seen.prose(role_input.feedback))
        return self.compact_messages(seen.compact(), role_input.feedback)

    def without_feedback(self) -> str:
        """The setting of the compact rendering, which can't show feedback; empty in prose."""
        if self.config.rendering is not None:
            return f"{self.build.path}.rendering=compact" * (self.config.rendering == "compact")
        return super().without_feedback()

    def parse(self, text: str, observation: Any) -> Any:
        """The message as a value of the game; a program for the role `tool`; empty for an empty message.

        Raises:
            PolicyFault: the text can't be read.
        """
        if self.role == "tool":
            return read_program(text)
        return observation.read(text, self._rendering(observation))

    def _rendering(self, seen: Any) -> Rendering:
        return self.config.rendering or seen.rendering


def system_prompts(
    solve: str,
    game: str,
    rules: str,
    says: str,
    does: str,
    finds: str,
    *,
    items: str = "moves",
    grid: str = "grid",
    planner_end: str = "",
    **beginnings: str,
) -> dict[str, str]:
    """The built-in system prompts of a game's roles.

    Args:
        solve: the verb, such as "solve", and `game` its object, such as "a Sudoku".
        rules: sentences, with a space after the last.
        says: what the planner says, such as "which digits belong where".
        does: what the executor does with it.
        finds: what the tool's program finds.
        items: the plural of what a message has.
        grid: the name of the grid.
        planner_end: the planner's last sentence; empty: as the others'.
        beginnings: by role, another beginning than the built-in one.
    """
    team = f"of a team of two that {solve}s {game}."
    end = f"Think briefly, and end with a list of {items} in square brackets."
    begin = {
        "planner": f"You are the planner {team} You say {says}; the executor {does}. ",
        "executor": (
            f"You are the executor {team} The planner says {says}; you adopt or overrule it, and your "
            f"{items} are played. "
        ),
        "solver": f"You {solve} {game}. Your {items} are played. ",
        "tool": (
            f"You are the programmer {team} You write a Python program that finds {finds}; your partner "
            "sees it and what it prints, and decides. "
        ),
        "plan": (
            f"You are the decider {team} Your partner wrote a program; you see it and what it printed, "
            f"adopt or overrule it, and your {items} are played. "
        ),
    } | {role: text.format(team=team) for role, text in beginnings.items()}
    ends = dict.fromkeys(begin, end) | {
        "planner": planner_end or end,
        "tool": (
            f"The program gets no input, so write the {grid} into it. Think briefly, and end with the whole "
            f"program in one ```python block; it must print the {items} as a list."
        ),
    }
    return {role: f"{begin[role]}{rules}{ends[role]}" for role in begin}
