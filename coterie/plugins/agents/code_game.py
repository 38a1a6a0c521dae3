"""Roles of environment `code_game`: aux and main; solver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from coterie.core.errors import PolicyFault
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.types import Message, RoleInput
from coterie.plugins.agents.names import check_name
from coterie.plugins.envs.code import game_words


class CodeGameRole(Plugin):
    """A role of environment `code_game`. Its prompt: its name, the problem, the feedback."""

    class Config(PluginConfig):
        pass

    config: Config
    omits_task = True
    role: ClassVar[str] = ""
    """The name that the role must have in the team."""

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        check_name(build, self.role, "code_game")

    def render(self, role_input: RoleInput) -> Sequence[Message]:
        """One user message, such as `aux + 3 then * 4 :`."""
        problem = [role_input.observation.prompt] if role_input.shows_task else []
        words = " ".join([self.role, *problem, *role_input.feedback, ":"]).split()
        return [{"role": "user", "content": " ".join(words)}]

    def parse(self, text: str, observation: Any) -> str:
        """The answer.

        Raises:
            PolicyFault: it can't be read.
        """
        if not game_words.code(self.role, text):
            raise PolicyFault(f"'{text[:40]}' is no answer of {self.role}")
        return " ".join(text.split())


class CodeGameAux(CodeGameRole):
    """Writes one operation: `+ 3`."""

    role = "aux"


class CodeGameMain(CodeGameRole):
    """Writes one operation, before or after aux: `aux * 4`."""

    role = "main"


class CodeGameSolver(CodeGameRole):
    """Writes both operations: `+ 3 * 4`."""

    role = "solver"
