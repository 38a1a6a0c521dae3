"""Small games and roles for tests, used through the configuration as `tests.games:Name`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

from coterie import Plugin, PluginConfig, PolicyFault, SystemFault
from coterie.api.open_run import open_run
from coterie.core.training.run import Run
from coterie.core.types import TEAM, Action, RoleInput, Step, Task
from coterie.recipes import load

CALLS: list[str] = []
"""Prompts of scripted engines, newest last; a test clears it."""


class Tasks:
    def __init__(self, split: str, count: int, strata: Sequence[str] = ("",)) -> None:
        self.split, self.count, self.strata = split, count, strata

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Task:
        return Task(id=f"{self.split}-{index}", payload=index, stratum=self.strata[index % len(self.strata)])


class Ledger(Plugin):
    """Each role writes a number; the team earns its value, the role a tenth of it. `stop` ends the game.

    The state is the tuple of (role, text) so far, and every role observes all of it.
    """

    class Config(PluginConfig):
        tasks: int = 8
        pause: bool = False
        fail_on: str = ""
        stages: list[list[str]] | None = None

    roles = ()
    components = {"sum": "increment", "best": "potential", "own": "increment"}
    weights = {"best": 0.0}

    def tasks(self, split: str, seed: int) -> Tasks:
        return Tasks(split, self.config.tasks)

    def reset(self, task: Task, seed: int) -> Any:
        return ()

    def acting_roles(self, state: Any) -> tuple[str, ...] | None:
        if state and state[-1][1] == "stop":
            return ()
        if self.config.stages is not None:
            return tuple(self.config.stages[len(state)]) if len(state) < len(self.config.stages) else ()
        return None

    def observe(self, state: Any, role: str) -> Any:
        return " ".join(f"{author}={text}" for author, text in state)

    async def step(self, state: Any, actions: Mapping[str, Action], ctx: Any) -> Step:
        if self.config.pause:
            await asyncio.sleep(random.random() / 200)  # unseeded: the order in which episodes finish varies
        texts = {role: action.text for role, action in actions.items()}
        if self.config.fail_on and self.config.fail_on in texts.values():
            raise SystemFault("the world broke")
        values = {
            role: float(text) if text.lstrip("-").replace(".", "").isdigit() else 0.0
            for role, text in texts.items()
        }
        after = (*state, *sorted(texts.items()))
        total = sum(values.values())
        best = max([float(t) for _, t in after if t.lstrip("-").replace(".", "").isdigit()], default=0.0)
        return Step(
            state=after,
            scores={
                (TEAM, "sum"): total,
                (TEAM, "best"): best,
                **{(role, "own"): value / 10 for role, value in values.items()},
            },
            info={"texts": texts},
        )

    def outcome(self, state: Any) -> Mapping[str, float]:
        return {"success": float(bool(state) and state[-1][1] == "stop"), "length": float(len(state))}


class Matrix(Plugin):
    """Two roles act at once; a table gives the team's pay."""

    class Config(PluginConfig):
        table: list[list[float]] = [[1.0, 0.0], [0.0, 0.6]]
        tasks: int = 4

    roles = ("row", "column")
    components = {"pay": "increment"}
    weights = {}

    def tasks(self, split: str, seed: int) -> Tasks:
        return Tasks(split, self.config.tasks)

    def reset(self, task: Task, seed: int) -> Any:
        return None

    def acting_roles(self, state: Any) -> tuple[str, ...] | None:
        return None if state is None else ()

    def observe(self, state: Any, role: str) -> str:
        return role

    async def step(self, state: Any, actions: Mapping[str, Action], ctx: Any) -> Step:
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

    def tasks(self, split: str, seed: int) -> Tasks:
        return Tasks(split, self.config.tasks)

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


class PlainRole(Plugin):
    """A role whose prompt is the observation and whose parser refuses the text `bad`."""

    class Config(PluginConfig):
        remembers: bool = False

    @property
    def remembers(self) -> bool:
        return bool(self.config.remembers)

    def render(self, role_input: RoleInput) -> list[dict[str, str]]:
        content = " ".join(
            [role_input.role, f"turn{role_input.turn}", str(role_input.observation), *role_input.feedback]
        )
        return [{"role": "user", "content": content}]

    def parse(self, text: str, observation: Any) -> Any:
        if text == "bad":
            raise PolicyFault("said bad")
        return text


def numbers(request: Any, text: str) -> str:
    """Branch b of every call writes b."""
    CALLS.append(text)
    return str(request.key.branch)


def constant(request: Any, text: str) -> str:
    return "1"


def keyed(request: Any, text: str) -> str:
    """A number that depends only on the request's seed."""
    return str(request.seed % 7)


def stops(request: Any, text: str) -> str:
    """Branch 1 writes `stop`, the others write their number."""
    return "stop" if request.key.branch == 1 else str(request.key.branch)


def run_of(
    *,
    play: str = "tests.games:numbers",
    env: dict[str, Any] | None = None,
    order: Any = ("one", "two"),
    max_turns: int = 1,
    **tables: Any,
) -> Run:
    """A composed run on a scripted engine, without a run folder."""
    from coterie.compose import compose

    names = [role for stage in order for role in ([stage] if isinstance(stage, str) else stage)]
    table: dict[str, Any] = {
        "env": {"type": "tests.games:Ledger", **(env or {})},
        "team": {
            "order": list(order),
            "max_turns": max_turns,
            "roles": {
                name: {"type": "tests.games:PlainRole", "policy": "p"} for name in dict.fromkeys(names)
            },
        },
        "policies": {"p": {"model": {"init": "none"}, "train": "none"}},
        "sampler": {"branches": 3},
        "algorithm": {"type": "at_grpo"},
        "engine": {"type": "scripted", "play": play},
        "trainer": {"type": "none"},
        "schedule": {"steps": 1, "tasks_per_step": 2},
    }
    for name, value in tables.items():
        table[name] = (
            {**table[name], **value}
            if isinstance(value, dict) and name in table and "type" not in value
            else value
        )
    return compose(load(table))


def play(run: Run, tasks: int = 1) -> tuple[list[Any], Any]:
    """(trees, scores) of one step."""

    async def go() -> tuple[list[Any], Any]:
        await open_run(run)
        try:
            rollouts = await run.play(run.jobs(tasks))
            return rollouts.trees, await run.score(rollouts)
        finally:
            await run.close()

    return asyncio.run(go())
