"""Which tasks a step plays, and training on easier ones first: `env.curriculum`, for every environment.

The environment of the table `env` is the target, and every evaluation is on it. A level is the same
environment with one field of its Config set to another value. Training plays the tasks of the present level
and goes on to the next when enough of its latest episodes succeeded.

The rate that promotes is a threshold, not a result: it is over training tasks of one level, and under
`expand: best` over the best of K branches (invariant 11). The metrics call it `curriculum/rate`.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from coterie.core.errors import ConfigError
from coterie.core.protocols import Environment, TaskSource
from coterie.core.training.metrics import episodes
from coterie.core.training.state import CurriculumState
from coterie.core.types import Metrics, Task, Tree
from coterie.core.types.seeding import generator

log = logging.getLogger("coterie")


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
class CurriculumLevel:
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

    field: str
    """The field of the environment's settings in which the levels differ."""
    promote_at: float
    """Mean success of the latest training episodes that leads to the next level."""
    window: int
    """Number of latest episodes."""
    levels: Sequence[CurriculumLevel]

    def metrics(self, trees: Sequence[Tree], state: CurriculumState, level: int | None = None) -> Metrics:
        """Metrics of a step.

        Args:
            level: that it was played at, which steps in play have from before; None: the present one.

        Returns:
            `curriculum/level`, `curriculum/value` where it is a number, `curriculum/rate` (NaN before the
            level's first episode) and `curriculum/episodes`, this step's included; the last two not of a
            level that was left before.
        """
        level = state.level if level is None else level
        metrics: Metrics = {"curriculum/level": float(level)}
        if level == state.level:
            counted = self._counted(trees, state, level)
            metrics |= {"curriculum/rate": counted.rate, "curriculum/episodes": float(counted.episodes)}
        value = self.levels[level].value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            metrics["curriculum/value"] = float(value)
        return metrics

    def after(
        self, trees: Sequence[Tree], state: CurriculumState, level: int | None = None
    ) -> CurriculumState:
        """The progress after a step: on the next level where the rate of its episodes is high enough."""
        counted = self._counted(trees, state, state.level if level is None else level)
        full, following = len(counted.latest) == self.window, state.level + 1
        if not (full and counted.rate >= self.promote_at and following < len(self.levels)):
            return counted
        value, after = (self.levels[level].value for level in (state.level, following))
        log.info("curriculum: %s goes from %s to %s, at %.2f", self.field, value, after, counted.rate)
        return CurriculumState(following)

    def _counted(self, trees: Sequence[Tree], state: CurriculumState, level: int) -> CurriculumState:
        if level != state.level:  # a step in play when the level was left
            return state
        successes = [success for tree in trees if (success := tree_success(tree)) is not None]
        latest = deque([*state.latest, *successes], maxlen=self.window)
        return CurriculumState(state.level, state.episodes + len(successes), latest)


def tree_success(tree: Tree) -> float | None:
    """Mean success of a tree's episodes by share, without those that a fault ended; None if none is left."""
    present = [
        (episode.share, success)
        for episode in episodes(tree)
        if episode.leaf is not None
        and not episode.leaf.lost
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


class TaskOrder:
    """Passes over the train split; each pass is a permutation of its own."""

    def __init__(self, tasks: TaskSource, seed: int) -> None:
        if len(tasks) == 0:
            raise ConfigError("the train split has no tasks", path="env")
        self._tasks, self._seed = tasks, seed
        self._permutation = lru_cache(maxsize=2)(self._make_permutation)

    def __len__(self) -> int:
        return len(self._tasks)

    def step(self, step: int, count: int) -> list[tuple[Task, int]]:
        """The (task, epoch) pairs of a step, from 0, that plays `count` tasks."""
        tasks = []
        for position in range(step * count, (step + 1) * count):
            epoch, offset = divmod(position, len(self._tasks))
            tasks.append((self._tasks[int(self._permutation(epoch)[offset])], epoch))
        return tasks

    def _make_permutation(self, epoch: int) -> np.ndarray:
        return generator(self._seed, "tasks", f"epoch {epoch}").permutation(len(self._tasks))
