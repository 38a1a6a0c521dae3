"""Training on easier tasks first: `env.curriculum`, for every environment.

The environment of the table `env` is the target, and every evaluation is on it. A level is the same
environment with one field of its Config set to another value. Training plays the tasks of the present level
and goes on to the next when enough of its latest episodes succeeded.

The rate that promotes is a threshold, not a result: it is over training tasks of one level, and under
`expand: best` over the best of K branches (invariant 11). The metrics call it `curriculum/rate`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from coterie.core.config import Strict, validate
from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins import Table, composed_fields
from coterie.core.protocols import Environment, TaskSource
from coterie.core.training.metrics import episodes
from coterie.core.training.state import CurriculumState
from coterie.core.types import Metrics, Task, Tree

log = logging.getLogger("coterie")

KEY = "curriculum"
"""The key in the table `env`; all other keys there are the plugin's."""
PATH = f"env.{KEY}"


class CurriculumConfig(Strict):
    """The table `env.curriculum`."""

    field: str = Field(description="A field of the environment's settings.")
    values: list[Any] = Field(min_length=2, description="The field's values, level by level.")
    promote_at: float = Field(
        gt=0, le=1, description="Mean success of the latest training episodes that leads to the next level."
    )
    window: int = Field(200, ge=1, description="Number of latest episodes.")


@dataclass(frozen=True, slots=True)
class LevelTasks:
    """The tasks of a level, under ids of the level, since draws are keyed by a task's id."""

    source: TaskSource
    suffix: str

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Task:
        task = self.source[index]
        return replace(task, id=f"{task.id}{self.suffix}")


@dataclass(frozen=True, slots=True)
class Level:
    """One value of the field."""

    value: Any
    environment: Environment
    suffix: str
    """Suffix of its tasks' ids, e.g. `@size=4`."""

    def tasks(self, seed: int) -> LevelTasks:
        """The train tasks of the level."""
        return LevelTasks(self.environment.tasks("train", seed), self.suffix)


@dataclass(frozen=True, slots=True)
class Curriculum:
    """The levels of a run. `RunState.curriculum` holds the progress through them."""

    config: CurriculumConfig
    levels: Sequence[Level]

    def record(self, trees: Sequence[Tree], state: CurriculumState) -> Metrics:
        """Count the episodes of a step, and go on to the next level where their rate is high enough.

        Returns:
            Metrics of the level that was played: `curriculum/level`, `curriculum/value` where it is a number,
            `curriculum/rate` (NaN before its first episode) and `curriculum/episodes`.
        """
        successes = [success for tree in trees if (success := tree_success(tree)) is not None]
        state.episodes += len(successes)
        state.latest.extend(successes)
        while len(state.latest) > self.config.window:
            state.latest.popleft()
        rate = math.fsum(state.latest) / len(state.latest) if state.latest else math.nan
        metrics: Metrics = {
            "curriculum/level": float(state.level),
            "curriculum/rate": rate,
            "curriculum/episodes": float(state.episodes),
        }
        value = self.levels[state.level].value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            metrics["curriculum/value"] = float(value)
        full = len(state.latest) == self.config.window
        if full and rate >= self.config.promote_at and state.level + 1 < len(self.levels):
            state.level, state.episodes = state.level + 1, 0
            state.latest.clear()
            after = self.levels[state.level].value
            log.info("curriculum: %s goes from %s to %s, at %.2f", self.config.field, value, after, rate)
        return metrics


def tree_success(tree: Tree) -> float | None:
    """Mean success of a tree's episodes by share, without those that a fault ended; None if none is left."""
    present = [
        (episode.share, success)
        for episode in episodes(tree)
        if episode.leaf is not None
        and episode.leaf.fault is None
        and (success := episode.outcome("success")) is not None
    ]
    return math.fsum(s * v for s, v in present) / math.fsum(s for s, _ in present) if present else None


def trained_on(
    environment: Environment, curriculum: Curriculum | None, seed: int
) -> list[tuple[Environment, TaskSource]]:
    """The (environment, train tasks) that training plays: the environment's, or those of each level."""
    if curriculum is None:
        return [(environment, environment.tasks("train", seed))]
    return [(level.environment, level.tasks(seed)) for level in curriculum.levels]


def taken(env: Table) -> tuple[Any, Table]:
    """(the table of the curriculum or None, the rest of the table `env`)."""
    return env.get(KEY), {key: value for key, value in env.items() if key != KEY}


def make_curriculum(
    table: Any, env: Table, target: Environment, make: Callable[[Table], Environment]
) -> Curriculum | None:
    """The curriculum of a run, or None where the table is.

    Args:
        env: the target's table, without the curriculum.
        make: an environment from its table.

    Raises:
        ConfigError: a wrong setting, a field that the environment doesn't have, a value that it refuses, two
            values that are alike, or a field that changes what the roles or the rewards are.
    """
    if table is None:
        return None
    config: CurriculumConfig = validate(CurriculumConfig, table, PATH)
    model = getattr(type(target), "Config", None)
    if model is None or config.field not in model.model_fields:
        raise ConfigError(
            f"the environment '{env['type']}' has no field '{config.field}'",
            path=f"{PATH}.field",
            fix=did_you_mean(config.field, model.model_fields if model is not None else ()),
        )
    # What the target is composed of (a sandbox, records) serves its levels too.
    settings = getattr(target, "config", None)
    shared = {name: getattr(settings, name, env[name]) for name in composed_fields(model) if name in env}
    base = {**env, **shared}
    levels: list[Level] = []
    for index, value in enumerate(config.values):
        path = f"{PATH}.values.{index}"
        try:
            environment = make({**base, config.field: value})
        except ConfigError as error:
            raise ConfigError(error.what, path=path, why=error.why, fix=error.fix) from None
        level = Level(value, environment, f"@{config.field}={value}")
        if level.suffix in [other.suffix for other in levels]:
            raise ConfigError("the value is there twice", path=path, why=f"got {value!r} again")
        _check_same(level, target, path)
        levels.append(level)
    return Curriculum(config, levels)


def _check_same(level: Level, target: Environment, path: str) -> None:
    """Refuse a level with other roles, components or weights than the run's."""
    for member in ("roles", "components", "weights"):
        value, wanted = getattr(level.environment, member), getattr(target, member)
        if value != wanted:
            raise ConfigError(
                f"the environment has other {member} with this value",
                path=path,
                why=f"{value} instead of {wanted}",
                fix=f"choose a field that leaves the {member} as they are",
            )
