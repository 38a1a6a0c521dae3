"""The game of the self-test: two roles that must both write the letter of their task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.protocols import StepContext
from coterie.core.types import TEAM, Action, ComponentKind, Message, RoleInput, Step, Task

LETTERS = "ab"


class _Tasks(Sequence[Task]):
    def __init__(self, split: str) -> None:
        self.split = split

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return Task(id=f"{self.split}-{index}", payload=LETTERS[index % len(LETTERS)])


class LetterGame(Plugin):
    """Both roles act at once, and see the letter; the team is paid the share of them that write it."""

    class Config(PluginConfig):
        pass

    roles = ("first", "second")
    components: Mapping[str, ComponentKind] = {"letter": "increment"}
    weights: Mapping[str, float] = {}

    def tasks(self, split: str, seed: int) -> Sequence[Task]:
        return _Tasks(split)

    def reset(self, task: Task, seed: int) -> Any:
        return (task.payload, None)

    def acting_roles(self, state: Any) -> tuple[str, ...] | None:
        return None if state[1] is None else ()

    def observe(self, state: Any, role: str) -> str:
        return str(state[0])

    async def step(self, state: Any, actions: Mapping[str, Action], ctx: StepContext) -> Step:
        share = sum(action.text == state[0] for action in actions.values()) / len(actions)
        return Step(state=(state[0], share), scores={(TEAM, "letter"): share})

    def outcome(self, state: Any) -> Mapping[str, float]:
        return {"success": float(state[1] == 1.0)}

    def vocabulary(self) -> Sequence[str]:
        return (*LETTERS, "c", *self.roles)


class LetterRole(Plugin):
    """Its prompt is its name and the letter."""

    class Config(PluginConfig):
        pass

    remembers = False

    def render(self, role_input: RoleInput) -> list[Message]:
        return [{"role": "user", "content": f"{role_input.role} {role_input.observation}"}]

    def parse(self, text: str, observation: Any) -> str:
        return text
