"""Which tasks a step plays: a keyed order over the train split, the same after a resume."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from coterie.core.errors import ConfigError
from coterie.core.protocols import TaskSource
from coterie.core.types import Task
from coterie.core.types.seeding import generator


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
