"""The bases of the built-in roles: the names that they must have, and what their prompts are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from pydantic import Field

from coterie.core.errors import ConfigError
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.types import Message, RoleInput
from coterie.discovery import plugins


class NamedRole(Plugin):
    """A role of an environment that gives every role its own part, and knows roles by their names.

    Raises:
        ConfigError: the role is called otherwise in the team.
    """

    config: Any
    game: ClassVar[str] = ""
    """The environment, and the beginning of the roles' registered names."""
    role: ClassVar[str] = ""
    """The name that the role must have in the team."""
    task: ClassVar[str] = ""
    """The built-in system prompt."""

    def __init__(self, config: Any, build: Any) -> None:
        super().__init__(config, build)
        if build.name != self.role:
            its_type = f"{self.game}_{build.name}"
            exists = its_type in plugins().registry.names("role")
            raise ConfigError(
                f"role '{build.name}' can't have the type of the role '{self.role}'",
                path=f"{build.path}.type",
                why=f"the environment {self.game} distinguishes roles by name",
                fix=f"name the role '{self.role}'" + f", or give it type {its_type}" * exists,
            )

    def messages(self, text: str) -> Sequence[Message]:
        """A system message, unless the setting `system` is empty, and a user message."""
        system = self.task if self.config.system is None else self.config.system
        user: Message = {"role": "user", "content": text}
        return [{"role": "system", "content": system}, user] if system else [user]


class ProseRole(NamedRole):
    """A role whose prompt is in English: what it sees, the feedback, what to write."""

    class Config(PluginConfig):
        system: str | None = Field(None, description="System prompt; null: the built-in one; empty: none.")
        ask: str | None = Field(
            None, description="Last lines of the prompt: what to write; null: the built-in ones."
        )

    def render(self, role_input: RoleInput) -> Sequence[Message]:
        """A system message, where there is one, and a user message."""
        seen = role_input.observation
        asked = self.asked(seen) if self.config.ask is None else self.config.ask
        sections = [*self.sections(seen, role_input.shows_task), role_input.feedback, (asked,)]
        return self.messages("\n\n".join("\n".join(section) for section in sections if section))

    def sections(self, seen: Any, shows_task: bool) -> Sequence[Sequence[str]]:
        """The lines of the prompt before the feedback, in sections with an empty line between them.

        Args:
            seen: the observation.
            shows_task: whether the task is stated; a role without `omits_task` always states it.
        """
        raise NotImplementedError

    def asked(self, seen: Any) -> str:
        """The built-in last lines of the prompt."""
        raise NotImplementedError


class CompactRole(NamedRole):
    """A role whose prompt may also be a few words, which have no place for feedback."""

    def compact_messages(self, text: str, feedback: Sequence[str]) -> Sequence[Message]:
        """One user message.

        Raises:
            ConfigError: there is feedback.
        """
        if feedback:
            raise ConfigError(
                "the compact rendering can't show the feedback of the transition mode",
                path=self.build.path,
                why=f"the feedback is: {feedback[-1]!r}",
                fix="set transition: none, or env.rendering: prose",
            )
        return [{"role": "user", "content": text}]

    def without_feedback(self) -> str:
        """The setting of the compact rendering, which can't show feedback; empty in prose."""
        settings = getattr(self.build.environment, "config", None)
        return "env.rendering=compact" if getattr(settings, "rendering", None) == "compact" else ""

    def vocabulary(self) -> Iterable[str]:
        """No words beyond the environment's."""
        return ()
