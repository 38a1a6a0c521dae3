"""A game in which the value of every action is known, played by policies that are known.

The scout writes `up` or `down`, the smith `hit` or `miss`; two turns. `up` raises the level with probability
CLIMBS, which stays raised. The smith's `hit` pays 1 + level to the team. Silence counts as `down` and `miss`.
The scout writes `up` with probability UP, the smith `hit` with probability 0.3 + 0.2 * level. The scout is
also paid `luck`, which is noise: it decides which of several branches goes on, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie import Plugin, PluginConfig
from coterie.core.types import TEAM, Action, Request, Step, Task
from coterie.testing.support.toys import NumberTasks

CLIMBS, UP = 0.8, 0.7
NAME = "tests.analysis.credit.known_game"
State = tuple[int, int]
"""(actions so far, level)."""


class KnownGame(Plugin):
    """The game."""

    class Config(PluginConfig):
        tasks: int = 40
        noise: float = 0.5
        """Deviation of what is added to each pay."""
        other: int = 0
        """Added to the level of the initial state: the game that the record is no longer of."""

    roles = ("scout", "smith")
    components = {"pay": "increment", "luck": "increment"}
    weights = {}

    def tasks(self, split: str, seed: int) -> NumberTasks:
        return NumberTasks(split, self.config.tasks)

    def reset(self, task: Task, seed: int) -> State:
        return (0, self.config.other)

    def acting_roles(self, state: State) -> tuple[str, ...] | None:
        return () if state[0] == 4 else None

    def observe(self, state: State, role: str) -> str:
        return f"level {state[1]}"

    async def step(self, state: State, actions: Mapping[str, Action], ctx: Any) -> Step:
        draws = np.random.default_rng(ctx.seed)
        count, level = state
        if "scout" in actions:
            climbs = draws.random() < CLIMBS and actions["scout"].text == "up"
            return Step(state=(count + 1, level + climbs), scores={("scout", "luck"): float(draws.normal())})
        pay = (1 + level) * (actions["smith"].text == "hit") + self.config.noise * float(draws.normal())
        return Step(state=(count + 1, level), scores={(TEAM, "pay"): pay})

    def outcome(self, state: State) -> Mapping[str, float]:
        return {"success": float(state[1] > 0)}

    def vocabulary(self) -> Sequence[str]:
        return ("up", "down", "hit", "miss", "level", "0", "1", "2", "3")


def play(request: Request, text: str) -> str:
    """The policies."""
    draw = request.seed / 2**64
    if request.key.role == "scout":
        return "up" if draw < UP else "down"
    return "hit" if draw < hits(int(text.split()[-1])) else "miss"


def hits(level: int) -> float:
    return 0.3 + 0.2 * level


def silent_effects() -> dict[tuple[str, int], float]:
    """By role and turn: what an action adds to the team's pay, over silence, on average."""

    def forged(level: int) -> float:
        """Expected pay of the smith's action."""
        return hits(level) * (1 + level)

    def after_scout(turn: int, level: int) -> float:
        """What is paid from the smith's action of a turn on."""
        return forged(level) + (before_scout(1, level) if turn == 0 else 0.0)

    def before_scout(turn: int, level: int) -> float:
        climbs = UP * CLIMBS
        return climbs * after_scout(turn, level + 1) + (1 - climbs) * after_scout(turn, level)

    climbs = UP * CLIMBS
    stays = 1 - climbs
    levels = {
        0: {0: 1.0},
        1: {0: stays, 1: climbs},
        2: {0: stays**2, 1: 2 * climbs * stays, 2: climbs**2},
    }
    return {
        ("scout", turn): climbs
        * sum(
            p * (after_scout(turn, level + 1) - after_scout(turn, level)) for level, p in levels[turn].items()
        )
        for turn in (0, 1)
    } | {("smith", turn): sum(p * forged(level) for level, p in levels[turn + 1].items()) for turn in (0, 1)}
