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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from coterie.core.protocols import Environment, TaskSource
from coterie.core.training.metrics import episodes
from coterie.core.training.state import CurriculumState
from coterie.core.types import Metrics, Task, Tree

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

    field: str
    """The field of the environment's settings in which the levels differ."""
    promote_at: float
    """Mean success of the latest training episodes that leads to the next level."""
    window: int
    """Number of latest episodes."""
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
        while len(state.latest) > self.window:
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
        full = len(state.latest) == self.window
        if full and rate >= self.promote_at and state.level + 1 < len(self.levels):
            state.level, state.episodes = state.level + 1, 0
            state.latest.clear()
            after = self.levels[state.level].value
            log.info("curriculum: %s goes from %s to %s, at %.2f", self.field, value, after, rate)
        return metrics


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
