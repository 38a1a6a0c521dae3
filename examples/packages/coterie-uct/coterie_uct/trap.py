"""Trap: each step off the way pays a little at once, and the way pays at its end."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import Field

from coterie import (
    TEAM,
    Action,
    ComponentKind,
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

MOVES = ("left", "right")


class State(NamedTuple):
    """The way to the treasure, and the moves so far; None: unreadable."""

    way: tuple[str, ...]
    moves: tuple[str | None, ...] = ()


class Trap(Plugin):
    """Who follows what pays at once leaves the way: .1 for a step off it, which costs far more at the end.

    The end pays the share of the way that was followed up to the first step off it; success is all of it.
    """

    class Config(PluginConfig):
        length: int = Field(4, ge=2, le=8, description="Moves of an episode.")

    config: Config
    roles = ("walker",)
    components: Mapping[str, ComponentKind] = {"pay": "increment"}
    weights: Mapping[str, float] = {}

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        length = self.config.length
        ways = itertools.islice(itertools.product(MOVES, repeat=length), 16)
        return [Task(id=f"{split}-{number}", payload=way) for number, way in enumerate(ways)]

    def reset(self, task: Task, seed: int) -> State:
        return State(task.payload)

    def acting_roles(self, state: State) -> tuple[str, ...]:
        return self.roles if len(state.moves) < len(state.way) else ()

    def observe(self, state: State, role: str) -> str:
        return f"way {' '.join(state.way)} step {len(state.moves)}"

    async def step(self, state: State, actions: Mapping[str, Action], ctx: StepContext) -> Step:
        after = state._replace(moves=(*state.moves, actions["walker"].parsed))
        off = after.moves[-1] != state.way[len(state.moves)]
        end = self._followed(after) if len(after.moves) == len(after.way) else 0.0
        return Step(state=after, scores={(TEAM, "pay"): 0.1 * off + end})

    def _followed(self, state: State) -> float:
        right = [move == turn for move, turn in zip(state.moves, state.way, strict=True)]
        return [*right, False].index(False) / len(right)

    def outcome(self, state: State) -> Mapping[str, float]:
        return {"success": float(state.moves == state.way)}

    def vocabulary(self) -> Sequence[str]:
        return MOVES


class Walker(Plugin):
    """Writes `left` or `right`."""

    def render(self, role_input: RoleInput) -> list[Message]:
        return [{"role": "user", "content": str(role_input.observation)}]

    def parse(self, text: str, observation: Any) -> str:
        if text not in MOVES:
            raise PolicyFault(f"{text[:20]!r} is neither left nor right")
        return text
