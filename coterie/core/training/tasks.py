"""Which tasks a step plays: a keyed order over the train split, the same after a resume."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache

import numpy as np

from coterie.core.errors import ConfigError
from coterie.core.protocols import TaskSource
from coterie.core.types import Task
from coterie.core.types.seeding import generator


class TaskOrder:
    """Passes over a split; each pass is a permutation of its own.

    With `stratify`, every stretch of a pass holds the strata in the shares that the split has.
    """

    def __init__(self, tasks: TaskSource, seed: int, *, stratify: bool = False, split: str = "train") -> None:
        if len(tasks) == 0:
            raise ConfigError(f"the {split} split has no tasks", path="env")
        self._tasks, self._seed, self._stratify = tasks, seed, stratify
        self._permutation = lru_cache(maxsize=2)(self._make_permutation)

    def __len__(self) -> int:
        return len(self._tasks)

    def step(self, step: int, count: int) -> list[tuple[Task, int]]:
        """The (task, epoch) pairs of a step that plays `count` tasks."""
        tasks = []
        for position in range(step * count, (step + 1) * count):
            epoch, offset = divmod(position, len(self._tasks))
            tasks.append((self._tasks[int(self._permutation(epoch)[offset])], epoch))
        return tasks

    def _make_permutation(self, epoch: int) -> np.ndarray:
        order = generator(self._seed, "tasks", f"epoch {epoch}").permutation(len(self._tasks))
        return self._interleaved(order) if self._stratify else order

    def _interleaved(self, order: np.ndarray) -> np.ndarray:
        strata: dict[str, list[int]] = defaultdict(list)
        for index in order:
            strata[self._tasks[int(index)].stratum].append(int(index))
        # The j-th of n members goes to (j + 1/2) / n of the pass: every window has each stratum's share.
        placed = [
            ((j + 0.5) / len(members), name, index)
            for name, members in strata.items()
            for j, index in enumerate(members)
        ]
        return np.array([index for _, _, index in sorted(placed)])
