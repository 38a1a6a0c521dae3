"""Relay: the first role sees a number, the last one has to name it, and only messages pass between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie import (
    TEAM,
    Action,
    Message,
    Plugin,
    PluginConfig,
    PolicyFault,
    RoleInput,
    Split,
    Step,
    StepContext,
    Task,
)

WORDS = ("ash", "birch", "cedar", "elm")


class Relay(Plugin):
    """Paid at the end alone: 1 where the actor names the reasoner's number."""

    class Config(PluginConfig):
        numbers: int = 2
        """How many numbers there are, at most four; as many words may be written."""

    roles = ("reasoner", "actor")
    components = {"right": "increment"}
    weights: Mapping[str, float] = {}

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        count = self.config.numbers
        return [Task(id=f"{split}-{index}", payload=index % count) for index in range(16)]

    def reset(self, task: Task, seed: int) -> tuple[Any, ...]:
        return (task.payload,)  # the number, then what was written

    def acting_roles(self, state: tuple[Any, ...]) -> tuple[str, ...]:
        if len(state) == 3 or None in state:  # an answer, or a message that nobody can read
            return ()
        return (self.roles[len(state) - 1],)

    def observe(self, state: tuple[Any, ...], role: str) -> str:
        return f"number {state[0]}" if role == "reasoner" else f"message {state[1]}"

    async def step(self, state: tuple[Any, ...], actions: Mapping[str, Action], ctx: StepContext) -> Step:
        (action,) = actions.values()
        after = (*state, action.parsed)  # None where nothing could be read
        if self.acting_roles(after):
            return Step(state=after)
        return Step(state=after, scores={(TEAM, "right"): float(self._right(after))})

    def outcome(self, state: tuple[Any, ...]) -> Mapping[str, float]:
        return {"success": float(self._right(state))}

    def _right(self, state: tuple[Any, ...]) -> bool:
        return len(state) == 3 and state[2] == WORDS[state[0]]

    def vocabulary(self) -> Sequence[str]:
        return WORDS[: self.config.numbers]


class Writer(Plugin):
    """A role that reads its observation and writes one word."""

    def render(self, role_input: RoleInput) -> list[Message]:
        return [{"role": "user", "content": str(role_input.observation)}]

    def parse(self, text: str, observation: Any) -> str:
        if text not in WORDS:
            raise PolicyFault(f"{text[:20]!r} is not one of {', '.join(WORDS)}")
        return text
