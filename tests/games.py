"""Games that the kit's `NumberGame` can't stand in for, and scripts of an engine."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

from coterie import Plugin, PluginConfig
from coterie.backends.engines.scripted import ScriptedEngine
from coterie.backends.models.wordcodec import WordCodec
from coterie.core.errors import ConfigError
from coterie.core.types import TEAM, Action, Call, Request, Step, Task
from coterie.testing.support.toys import NumberTasks


class Matrix(Plugin):
    """Two roles act at once; a table gives the team's pay."""

    class Config(PluginConfig):
        table: list[list[float]] = [[1.0, 0.0], [0.0, 0.6]]
        tasks: int = 4
        pause: float = 0.0
        """Most seconds that a step waits; how long it does is not seeded."""

    roles = ("row", "column")
    components = {"pay": "increment"}
    weights = {}

    def tasks(self, split: str, seed: int) -> NumberTasks:
        return NumberTasks(split, self.config.tasks)

    def reset(self, task: Task, seed: int) -> Any:
        return None

    def acting_roles(self, state: Any) -> tuple[str, ...] | None:
        return None if state is None else ()

    def observe(self, state: Any, role: str) -> str:
        return role

    async def step(self, state: Any, actions: Mapping[str, Action], ctx: Any) -> Step:
        if self.config.pause:
            await asyncio.sleep(self.config.pause * random.random())
        row, column = ("ab".find(actions[role].text) for role in self.roles)
        pay = self.config.table[row][column] if row >= 0 and column >= 0 else 0.0
        return Step(state=(row, column, pay), scores={(TEAM, "pay"): pay})

    def outcome(self, state: Any) -> Mapping[str, float]:
        return {"success": state[2]}

    def vocabulary(self) -> Sequence[str]:
        return ("a", "b", "row", "column")


class HandOver(Plugin):
    """The giver's first letter decides the pay; the taker's actions have no effect.

    `late: false` pays after the giver's first action, `late: true` at the end of the second turn.
    """

    class Config(PluginConfig):
        late: bool = False
        tasks: int = 4

    roles = ("giver", "taker")
    components = {"pay": "increment"}
    weights = {}

    def tasks(self, split: str, seed: int) -> NumberTasks:
        return NumberTasks(split, self.config.tasks)

    def reset(self, task: Task, seed: int) -> Any:
        return ()

    def acting_roles(self, state: Any) -> tuple[str, ...] | None:
        return () if len(state) == (4 if self.config.late else 2) else None

    def observe(self, state: Any, role: str) -> str:
        return f"{role} {len(state)}"

    async def step(self, state: Any, actions: Mapping[str, Action], ctx: Any) -> Step:
        after = (*state, *(action.text for action in actions.values()))
        pays = len(after) == (4 if self.config.late else 1)
        return Step(state=after, scores={(TEAM, "pay"): float(pays and after[0] == "a")})

    def outcome(self, state: Any) -> Mapping[str, float]:
        return {"success": float(bool(state) and state[0] == "a")}

    def vocabulary(self) -> Sequence[str]:
        return ("a", "b", "c")


def keyed(request: Any, text: str) -> str:
    """A number that depends only on the request's seed."""
    return str(request.seed % 7)


def stops(request: Any, text: str) -> str:
    """Branch 1 writes `stop`, the others write their number."""
    return "stop" if request.key.branch == 1 else str(request.key.branch)


class Counted(Plugin):
    """One role acts: an episode has `stages` stages, a turn `per_turn` of them. A 0 ends the episode."""

    class Config(PluginConfig):
        stages: int = 5000
        per_turn: int = 1000
        tasks: int = 4

    roles = ("one",)
    components = {"pay": "increment", "level": "potential"}
    weights = {}

    def tasks(self, split: str, seed: int) -> NumberTasks:
        return NumberTasks(split, self.config.tasks)

    def reset(self, task: Task, seed: int) -> int:
        return 0

    def acting_roles(self, state: int) -> tuple[str, ...] | None:
        return ("one",) if 0 <= state < self.config.stages else ()

    def observe(self, state: int, role: str) -> str:
        return "go"

    async def step(self, state: int, actions: Mapping[str, Action], ctx: Any) -> Step:
        text = actions["one"].text
        scores = {(TEAM, "pay"): float(text == "1"), (TEAM, "level"): (state + 1) / self.config.stages}
        after = -1 if text == "0" else state + 1
        return Step(state=after, scores=scores, turn_over=(state + 1) % self.config.per_turn == 0)

    def outcome(self, state: int) -> Mapping[str, float]:
        return {"success": float(state == self.config.stages)}

    def vocabulary(self) -> Sequence[str]:
        return ("1", "2")

    def demonstrate(self, state: int, role: str, noise: float, rng: Any) -> str:
        return "1"


class Endless(Counted):
    """A game whose first turn never ends."""

    def acting_roles(self, state: int) -> tuple[str, ...] | None:
        return ("one",)

    async def step(self, state: int, actions: Mapping[str, Action], ctx: Any) -> Step:
        return Step(state=state + 1)


class SmallContext(ScriptedEngine):
    """A scripted engine whose context has so many words; it refuses a longer prompt, as `hf` does."""

    class Config(ScriptedEngine.Config):
        context: int

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self._codec = WordCodec(self.config.context)

    async def generate(self, request: Request) -> Call:
        if len(request.prompt_ids) >= self.config.context:
            raise ConfigError(f"prompt of {len(request.prompt_ids)} tokens does not fit", path="team.roles")
        return await super().generate(request)
