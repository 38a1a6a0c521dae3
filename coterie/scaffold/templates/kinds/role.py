"""A role: how a place in the team is prompted, and how its answers are read.

The prompt is the observation with the feedback below it; the answer is a few words.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from coterie import Message, Plugin, PluginConfig, PolicyFault, Register, RoleInput, hookimpl


class ExampleNameRole(Plugin):
    """Shows what the environment gives, and reads the words of the answer."""

    class Config(PluginConfig):
        instruction: str = Field("", description="The first line of every prompt; empty: none.")
        longest: int = Field(20, ge=1, description="Most words of an answer.")

    config: Config

    # Called before every action. Equal inputs give equal messages, and the input stays as it is.
    def render(self, role_input: RoleInput) -> Sequence[Message]:
        lines = [self.config.instruction, str(role_input.observation), *role_input.feedback]
        return [{"role": "user", "content": "\n".join(line for line in lines if line)}]

    # Called with any text that a model can write. PolicyFault, and nothing else, means: it can't be read.
    # The environment then gets `action.parsed` None, and reward sources may give their floor.
    def parse(self, text: str, observation: Any) -> tuple[str, ...]:
        words = tuple(text.split())
        if not 1 <= len(words) <= self.config.longest:
            raise PolicyFault(f"{len(words)} words, not 1 to {self.config.longest}")
        return words


@hookimpl
def register_roles(register: Register) -> None:
    register("example_name", ExampleNameRole)
