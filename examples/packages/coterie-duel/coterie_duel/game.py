"""Nim: take one or two of a heap in turn; who takes the last one wins. One side is trained."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import Field

from coterie import (
    Action,
    ComponentKind,
    EpisodeView,
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

PLAYER = "player"


class State(NamedTuple):
    """The heap, whose move it is, this episode's opponent, and the winner: empty until someone has won."""

    heap: int
    mover: str
    opponent: str
    winner: str = ""


class NimDuel(Plugin):
    """The player against one of the opponents; `duel_result` says who gets what.

    A task draws how large the heap is, who begins, and which opponent plays, so that all episodes of a task
    meet the same one. A move that can't be read, or takes more than there is, loses.
    """

    class Config(PluginConfig):
        heap: int = Field(7, ge=2, description="Heaps have from 2 to so many.")
        opponents: Literal[1, 2, 3, 4] = Field(1, description="Roles `opponent1`, `opponent2`, ...")
        tasks: int = Field(64, ge=1)

    config: Config
    components: Mapping[str, ComponentKind] = {}
    weights: Mapping[str, float] = {}

    @property
    def roles(self) -> tuple[str, ...]:
        return (PLAYER, *(f"opponent{index + 1}" for index in range(self.config.opponents)))

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        draws = random.Random(f"{seed} {split}")
        made = []
        for index in range(self.config.tasks):
            heap, first = draws.randint(2, self.config.heap), draws.random() < 0.5
            opponent = self.roles[1 + draws.randrange(self.config.opponents)]
            made.append(Task(id=f"{split}-{index}", payload=(heap, PLAYER if first else opponent, opponent)))
        return made

    def reset(self, task: Task, seed: int) -> State:
        return State(*task.payload)

    def acting_roles(self, state: State) -> tuple[str, ...]:
        return () if state.winner else (state.mover,)

    def observe(self, state: State, role: str) -> str:
        return f"heap {state.heap}"

    async def step(self, state: State, actions: Mapping[str, Action], ctx: StepContext) -> Step:
        ((mover, action),) = actions.items()
        other = state.opponent if mover == PLAYER else PLAYER
        left = state.heap - action.parsed if action.parsed else -1
        if left > 0:
            return Step(state=state._replace(heap=left, mover=other))
        winner = mover if left == 0 else other
        return Step(state=state._replace(heap=max(left, 0), winner=winner))

    def outcome(self, state: State) -> Mapping[str, float]:
        won = float(state.winner == PLAYER)
        return {"success": won, f"won/{state.opponent}": won}

    def vocabulary(self) -> Sequence[str]:
        return ("one", "two")


class Side(Plugin):
    """A side sees the heap and says how many it takes. Every side has the same prompt: any version fits."""

    def render(self, role_input: RoleInput) -> list[Message]:
        return [{"role": "user", "content": str(role_input.observation)}]

    def parse(self, text: str, observation: Any) -> int:
        if text not in ("one", "two"):
            raise PolicyFault(f"{text[:20]!r} is neither one nor two")
        return 1 if text == "one" else 2


class DuelResult(Plugin):
    """1 for the side that won and -1 for the other one: an episode's scores add up to 0.

    It is a source of scope `episode`, since an environment can score only the roles that act: the player
    loses on its opponent's move.
    """

    scope: Literal["episode"] = "episode"
    components: Mapping[str, ComponentKind] = {"won": "increment"}
    weights: Mapping[str, float] = {}
    per_role = ("won",)
    policy_fault = -1.0

    async def score(self, view: EpisodeView) -> Mapping[tuple[str, str], float]:
        won = (view.leaf.outcome or {})["success"] == 1.0
        sides = {played.decision.role for played in view.actions}
        return {(side, "won"): 1.0 if (side == PLAYER) == won else -1.0 for side in sides}
