"""The base of the games' roles: one prompt, compact or in prose, with feedback; and which names they
accept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from pydantic import Field

from coterie.core.errors import ConfigError
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.types import Message, RoleInput
from coterie.plugins.agents.names import check_name
from coterie.plugins.envs.common.code import read_program
from coterie.plugins.envs.common.parsing import Rendering
from coterie.plugins.envs.common.roles import PROSE_ROLES


def compact_rendering(environment: Any) -> str:
    """`env.rendering=compact` where an environment's settings say so; else empty."""
    settings = getattr(environment, "config", None)
    return "env.rendering=compact" if getattr(settings, "rendering", None) == "compact" else ""


class GameRole(Plugin, ABC):
    """A role of a game. The environment decides what it observes and how its messages are written."""

    class Config(PluginConfig):
        rendering: Rendering | None = Field(
            None, description="How prompts are written; null: the environment's rendering."
        )
        system: str | None = Field(
            None, description="System prompt of the prose rendering; null: the built-in one."
        )

    config: Config
    game: ClassVar[str] = ""
    """The environment, and the beginning of the roles' registered names."""
    role: ClassVar[str] = ""
    """The name that the role must have in the team."""
    task: ClassVar[str] = ""
    """The built-in system prompt."""

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        check_name(build, self.role, self.game)
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
            system = self.task if self.config.system is None else self.config.system
            user = {"role": "user", "content": self.prose(seen, role_input.feedback)}
            return [{"role": "system", "content": system}, user] if system else [user]
        if role_input.feedback:
            raise ConfigError(
                "the compact rendering can't show the feedback of the transition mode",
                path=self.build.path,
                why=f"the feedback is: {role_input.feedback[-1]!r}",
                fix="set transition: none, or env.rendering: prose",
            )
        return [{"role": "user", "content": self.compact(seen)}]

    def without_feedback(self) -> str:
        """The setting of the compact rendering, which can't show feedback; empty in prose."""
        if self.config.rendering is not None:
            return f"{self.build.path}.rendering=compact" * (self.config.rendering == "compact")
        return compact_rendering(self.build.environment)

    def parse(self, text: str, observation: Any) -> Any:
        """The message as a value of the game; a program for the role `tool`; empty for an empty message.

        Raises:
            PolicyFault: the text can't be read.
        """
        if self.role == "tool":
            return read_program(text)
        return self.read(text, observation, self._rendering(observation))

    def vocabulary(self) -> Iterable[str]:
        """No words beyond the environment's."""
        return ()

    def _rendering(self, seen: Any) -> Rendering:
        return self.config.rendering or seen.rendering

    # ---- of each game --------------------------------------------------------------------------------------

    @abstractmethod
    def compact(self, seen: Any) -> str:
        """The prompt in the compact rendering."""

    @abstractmethod
    def prose(self, seen: Any, feedback: tuple[str, ...]) -> str:
        """The prompt in English."""

    @abstractmethod
    def read(self, text: str, seen: Any, rendering: Rendering) -> Any:
        """The message as a value of the game; raises PolicyFault."""
