"""What the roles of the games share: one prompt in words or in prose, notes, and who may sit where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from pydantic import Field

from coterie.core.errors import ConfigError
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.types import Message, RoleInput
from coterie.plugins.envs.common.code import read_program
from coterie.plugins.envs.common.parsing import Rendering
from coterie.plugins.envs.common.roles import PROSE_ROLES


class GameRole(Plugin):
    """A seat in a game. What it sees and which language it writes are the environment's to say."""

    class Config(PluginConfig):
        rendering: Rendering | None = Field(None, description="Instead of the environment's.")
        system: str | None = Field(
            None, description="System prompt of the prose rendering; null: the built-in one."
        )

    config: Config
    game: ClassVar[str] = ""
    """The environment, and the beginning of the roles' registered names."""
    seat: ClassVar[str] = ""
    task: ClassVar[str] = ""
    """The built-in system prompt."""

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        if build.name != self.seat:
            raise ConfigError(
                f"role '{build.name}' can't sit in the {self.seat}'s seat",
                path=f"{build.path}.type",
                why=f"the environment {self.game} tells roles apart by name",
                fix=f"name the role '{self.seat}', or give it type {self.game}_{build.name}",
            )
        if config.rendering == "compact" and self.seat in PROSE_ROLES:
            raise ConfigError(
                f"the seat '{self.seat}' is for the prose rendering",
                path=f"{build.path}.rendering",
                why="the compact one has no words for a program",
                fix="remove it",
            )

    def render(self, role_input: RoleInput) -> Sequence[Message]:
        """One user message of words, or a system and a user message of prose.

        Raises:
            ConfigError: notes for the compact rendering, which has no words for them.
        """
        seen = role_input.observation
        if self._rendering(seen) == "prose":
            system = self.task if self.config.system is None else self.config.system
            user = {"role": "user", "content": self.prose(seen, role_input.feedback)}
            return [{"role": "system", "content": system}, user] if system else [user]
        if role_input.feedback:
            raise ConfigError(
                "the compact rendering has no words for what the transition mode tells",
                path=self.build.path,
                why=f"it told: {role_input.feedback[-1]!r}",
                fix="set transition: plain, or env.rendering: prose",
            )
        return [{"role": "user", "content": self.compact(seen)}]

    def parse(self, text: str, observation: Any) -> Any:
        """What the message says, as the game has it; the tool's is a program. Nothing of an empty message.

        Raises:
            PolicyFault: the text says nothing of the kind.
        """
        if self.seat == "tool":
            return read_program(text)
        return self.read(text, observation, self._rendering(observation))

    def vocabulary(self) -> Iterable[str]:
        """Nothing beyond the environment's words."""
        return ()

    def _rendering(self, seen: Any) -> Rendering:
        return self.config.rendering or seen.rendering

    # ---- what a game says ----------------------------------------------------------------------------------

    def compact(self, seen: Any) -> str:
        """The prompt in words."""
        raise NotImplementedError

    def prose(self, seen: Any, notes: tuple[str, ...]) -> str:
        """The prompt in English."""
        raise NotImplementedError

    def read(self, text: str, seen: Any, rendering: Rendering) -> Any:
        """What the message says; raises PolicyFault."""
        raise NotImplementedError
