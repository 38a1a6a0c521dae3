"""A game of three roles, and trainers that sleep and fail, for runs whose sets of weights update at once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.backends.trainers.tabular import TabularTrainer
from coterie.core.errors import ConfigError
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.types import TEAM, Action, Metrics, Sample, Step, Task
from coterie.testing.support.toys import NumberTasks

ROLES = ("first", "second", "third")


class Trio(Plugin):
    """Three roles act at once. Each letter `a` pays; the oracle writes `a`."""

    class Config(PluginConfig):
        tasks: int = 4

    roles = ROLES
    components = {"pay": "increment"}
    weights: Mapping[str, float] = {}

    def tasks(self, split: str, seed: int) -> NumberTasks:
        return NumberTasks(split, self.config.tasks)

    def reset(self, task: Task, seed: int) -> Any:
        return None

    def acting_roles(self, state: Any) -> tuple[str, ...] | None:
        return None if state is None else ()

    def observe(self, state: Any, role: str) -> str:
        return role

    async def step(self, state: Any, actions: Mapping[str, Action], ctx: Any) -> Step:
        pay = sum(action.text == "a" for action in actions.values()) / len(ROLES)
        return Step(state=pay, scores={(TEAM, "pay"): pay})

    def outcome(self, state: Any) -> Mapping[str, float]:
        return {"success": state}

    def demonstrate(self, state: Any, role: str, noise: float, rng: Any) -> str:
        return "b" if rng.random() < noise else "a"

    def vocabulary(self) -> Sequence[str]:
        return ("a", "b", *ROLES)


class Sleeping(TabularTrainer):
    """Sleeps in the update of each policy, and writes down from when to when."""

    class Config(TabularTrainer.Config):
        record: str
        pause: float = 0.4

    def _update(self, name: str, policy: Any, samples: Sequence[Sample], step: int) -> Metrics:
        began = time.time()
        time.sleep(self.config.pause)
        metrics = super()._update(name, policy, samples, step)
        line = json.dumps({"policy": name, "step": step, "began": began, "ended": time.time()})
        with Path(self.config.record).open("a") as file:
            file.write(f"{line}\n")
        return metrics


class Faulty(TabularTrainer):
    """Fails in the second update of policy `column`, which writes down its process before."""

    class Config(TabularTrainer.Config):
        how: str
        record: str = ""

    def _update(self, name: str, policy: Any, samples: Sequence[Sample], step: int) -> Metrics:
        if name == "column" and step == 1:
            if self.config.how == "refuse":
                raise ConfigError("it is wrong", path="trainer.how", why="a test wants it", fix="none")
            if self.config.how == "bug":
                raise KeyError("no such row")
            if self.config.how == "exit":
                raise SystemExit(3)
            if not Path(self.config.record).exists():  # the run is resumed
                Path(self.config.record).write_text(str(os.getpid()))
                time.sleep(600)
        return super()._update(name, policy, samples, step)


class Whole(TabularTrainer):
    """A trainer whose state can't be divided."""

    same_start = None  # type: ignore[assignment]
