"""Hints: a thinker sees a number and writes a word; a solver, who sees some of the numbers, names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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


class State(NamedTuple):
    """The number, whether the solver sees it, and what was written: None where nothing could be read."""

    number: int
    shown: bool
    written: tuple[str | None, ...] = ()


class Hints(Plugin):
    """Pays 1 where the solver names the number, else -1. Half of the tasks need no hint."""

    class Config(PluginConfig):
        numbers: int = 2
        """How many numbers there are, at most four."""

    roles = ("thinker", "solver")
    components = {"right": "increment"}
    weights: Mapping[str, float] = {}

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        count = self.config.numbers
        return [Task(id=f"{split}-{n}", payload=(n // 2 % count, n % 2 == 0)) for n in range(16)]

    def reset(self, task: Task, seed: int) -> State:
        return State(*task.payload)

    def acting_roles(self, state: State) -> tuple[str, ...]:
        return (self.roles[len(state.written)],) if len(state.written) < 2 else ()

    def observe(self, state: State, role: str) -> str:
        if role == "thinker" or state.shown:
            return f"{role} number {state.number}"
        return f"solver hint {state.written[0] or 'none'}"

    async def step(self, state: State, actions: Mapping[str, Action], ctx: StepContext) -> Step:
        (action,) = actions.values()
        after = state._replace(written=(*state.written, action.parsed))
        if self.acting_roles(after):
            return Step(state=after)
        return Step(state=after, scores={(TEAM, "right"): 2 * self.outcome(after)["success"] - 1})

    def outcome(self, state: State) -> Mapping[str, float]:
        return {"success": float(state.written[-1:] == (WORDS[state.number],))}

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
