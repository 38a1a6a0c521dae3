"""A transition mode: the feedback that a role reads before its second and every later action.

Reminder: each role is told what it wrote last, and whether that could be read.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from coterie import Environment, HistoryEntry, Plugin, PluginConfig, Register, hookimpl


class ExampleNameTransition(Plugin):
    """Tells a role its last answer."""

    class Config(PluginConfig):
        longest: int = Field(200, ge=1, description="Most characters of the answer that are repeated.")

    config: Config

    # Called before every action but a role's first, so `history` is never empty. What it writes is shown by
    # `Role.render`. SystemFault: there is no feedback, and the action that was to read it is missing.
    async def tell(
        self, role: str, state: Any, history: Sequence[HistoryEntry], environment: Environment
    ) -> Sequence[str]:
        last = history[-1].action
        sentences = [f"You wrote: {last.text[: self.config.longest]}"]
        if last.parsed is None:
            sentences.append("Nobody could read that.")
        return sentences


@hookimpl
def register_transitions(register: Register) -> None:
    register("example_name", ExampleNameTransition)
