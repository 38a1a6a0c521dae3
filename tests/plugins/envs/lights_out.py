"""Lights Out, a fourth grid game in one file: a press switches a light and those next to it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from coterie.core.types import Task
from coterie.core.types.splits import Split
from coterie.plugins.agents.games import GameRole, system_prompts
from coterie.plugins.envs.board.effects import Effect, components, play, weights
from coterie.plugins.envs.board.game import BoardGame, GameConfig
from coterie.plugins.envs.board.grid import Cell, Rectangle, bits, neighbours
from coterie.plugins.envs.board.parsing import Wording, cell_word, read_cell
from coterie.plugins.envs.board.values import BoardObservation, BoardState, grid_line, pictured
from coterie.plugins.envs.common.generated import split_of

WORDING = Wording(
    item="press",
    items="presses",
    word=cell_word,
    read=read_cell,
    reasons={"edge": "is outside the grid"},
    stopped="The rest was not pressed.",
)


@dataclass(frozen=True, slots=True)
class Lights(Rectangle):
    """The cells that are left to press, in any order. Grids of sizes 2 and 3 have one solution."""

    presses: int

    def lit(self) -> tuple[Cell, ...]:
        lights = 0
        for cell in bits(self.presses):
            around = neighbours(self.width, self.height)[cell].values()
            lights ^= sum(1 << other for other in around if other >= 0) | 1 << cell
        return self.cells(lights)

    def rows(self) -> list[str]:
        return pictured(self.height, self.width, dict.fromkeys(self.lit(), "*"), ".", space="")

    @property
    def content(self) -> str:
        return f"{self.width}:{self.presses:x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressed(Effect):
    end: Lights


@dataclass(frozen=True, slots=True, kw_only=True)
class LightsState(BoardState):
    lights: Lights
    first: int

    @property
    def left(self) -> int:
        return self.lights.presses.bit_count()


@dataclass(frozen=True, slots=True, kw_only=True)
class LightsObservation(BoardObservation):
    size: int
    lit: tuple[Cell, ...]
    wording: ClassVar[Wording] = WORDING

    def compact(self) -> str:
        plan = [] if self.plan is None else ["plan", *self.plan_words()]
        return " ".join([self.role, *map(cell_word, self.lit), *plan, ":"])

    def board_lines(self) -> list[str]:
        picture = pictured(self.size, self.size, dict.fromkeys(self.lit, "*"), ".")
        return [grid_line(self.turn, self.size, self.size), "'*' is a light, '.' is dark.", "", *picture, ""]

    def task(self) -> str:
        return self.asked("[r0c1, r2c2]")


class LightsOut(BoardGame):
    """Switch all lights off, over several turns."""

    class Config(GameConfig):
        size: Literal[2, 3] = 3
        team: Literal["progress", "potential"] = "progress"

    quality = "useful"
    components = components(quality)
    weights = weights(components, quality)
    left_name, marks, drawn_as, wording = "presses_left", "*.", "lights_out", WORDING

    def drawn(self, purpose: str, split: Split) -> Lights | None:
        number = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=4).digest(), "little")
        lights = Lights(self.width, self.height, number % (1 << self.width * self.height))
        return lights if lights.presses and split_of(lights.content) == split else None

    def problem_of(self, text: str) -> Lights:
        every = (Lights(self.width, self.height, presses) for presses in range(1 << len(text)))
        return next(lights for lights in every if "".join(lights.rows()) == text)

    def reset(self, task: Task, seed: int) -> LightsState:
        return LightsState(lights=task.payload, first=task.payload.presses.bit_count())

    def observe(self, state: LightsState, role: str) -> LightsObservation:
        plan = (state.plan.items if state.plan else ()) if role == "executor" else None
        return LightsObservation(**self.seen(state, role), size=self.width, lit=state.lights.lit(), plan=plan)

    def effect(self, state: LightsState, items: Sequence[Cell]) -> Pressed:
        presses = state.lights.presses

        def press(cell: Cell) -> str:
            nonlocal presses
            index = state.lights.index(cell)
            presses ^= 0 if index is None else 1 << index
            return "edge" if index is None else ""

        played = play(items, press, lambda: not presses, limit=None, skip=False)
        return Pressed(end=Lights(self.width, self.height, presses), **played)

    def changes(self, effect: Pressed) -> dict[str, Any]:
        return {"lights": effect.end}

    def oracle(self, state: LightsState) -> Sequence[Cell]:
        return state.lights.cells(state.lights.presses)

    def every_item(self) -> Sequence[Cell]:
        return [(row, column) for row in range(self.height) for column in range(self.width)]


PROMPTS = system_prompts(
    *("put", "all lights out", "A press switches a light and those next to it. ", "which cells to press"),
    *("presses them", "the cells to press"),
    items="presses",
)


class LightsOutPlanner(GameRole):
    game, role, task = "lights_out", "planner", PROMPTS["planner"]


class LightsOutExecutor(GameRole):
    game, role, task = "lights_out", "executor", PROMPTS["executor"]
