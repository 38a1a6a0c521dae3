"""Batches that keep the mix of a whole set: how many tasks of each stratum every step plays.

A stratum with n of N tasks has a fair share of b * n / N tasks in a batch of b. Every batch plays this number
rounded down or up. So do the batches up to any one of them together. That is why a pass over the tasks ends
where it ends without strata: what it has left of a stratum always fits into the batch in which it ends.

Which strata round up in which batch is a schedule of periodic tasks on identical processors. A batch is a
slot; the places that are left after rounding down are the processors; a share's fraction is its weight.
"Proportionate progress" (Baruah, Cohen, Plaxton and Varvel, Algorithmica 15, 1996) proves that a schedule
without a miss exists for all weights. The priorities PD2 (Srinivasan and Anderson, "Optimal rate-based
scheduling on multiprocessors", STOC 2002) find it slot by slot. All is computed in whole numbers.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from coterie.core.protocols import TaskSource
from coterie.core.training.tasks import TaskOrder
from coterie.core.types import Task

Priority = tuple[int, int, int, int, int]
"""Deadline of the next round-up; two that break ties; the stratum; the number of the round-up, from 1."""


class Quotas:
    """How many tasks of each stratum the batches of one size hold; it depends on the sizes alone.

    Args:
        sizes: tasks of each stratum.
        batch: tasks of a batch; it may be larger than all strata together.
    """

    def __init__(self, sizes: Sequence[int], batch: int) -> None:
        self._total = sum(sizes)
        self._whole = np.array([batch * size // self._total for size in sizes], np.int64)
        self._rest = [batch * size % self._total for size in sizes]
        self._places = batch - int(self._whole.sum())
        """Strata that round up in each batch."""
        self._period = self._total // math.gcd(self._total, batch)
        """Batches after which all shares are whole."""
        self._rounded_up: list[int] = []
        """The strata that round up, `_places` for each batch; grows as batches are asked for."""
        self._ready: list[Priority] = []
        self._later = [(0, self._priority(stratum, 1)) for stratum, rest in enumerate(self._rest) if rest]

    def before(self, batches: int) -> np.ndarray:
        """Tasks of each stratum in the first `batches` batches together, shape [strata]."""
        periods, slots = divmod(batches, self._period)
        while len(self._rounded_up) < slots * self._places:
            self._next_slot()
        in_period = np.array(self._rest, np.int64) * self._period // self._total
        begun = np.bincount(self._rounded_up[: slots * self._places], minlength=len(self._rest))
        return batches * self._whole + periods * in_period + begun

    def _next_slot(self) -> None:
        slot = len(self._rounded_up) // self._places
        while self._later and self._later[0][0] <= slot:
            heapq.heappush(self._ready, heapq.heappop(self._later)[1])
        for _ in range(self._places):
            *_, stratum, number = heapq.heappop(self._ready)
            self._rounded_up.append(stratum)
            release = number * self._total // self._rest[stratum]
            heapq.heappush(self._later, (release, self._priority(stratum, number + 1)))

    def _priority(self, stratum: int, number: int) -> Priority:
        """That of PD2: the earlier deadline; then a window that overlaps the next; then the later group."""
        total, rest = self._total, self._rest[stratum]
        deadline = _ceil(number * total, rest)
        overlaps = number * total % rest > 0
        group = 0
        if 2 * rest >= total:  # its windows are so short that one late round-up delays a group of them
            group = _ceil(_ceil(deadline * (total - rest), total) * total, total - rest)
        return deadline, -overlaps, -group, stratum, number


def _ceil(number: int, by: int) -> int:
    return -(-number // by)


class StratifiedOrder(TaskOrder):
    """Passes over the train split in which every batch keeps each stratum's share, within one task.

    A pass takes the tasks of a stratum in the order in which the plain permutation of the pass has them. The
    order depends on the seed, the strata and the size of a batch alone.

    Args:
        strata: the name of each task's stratum, shape [tasks].
    """

    def __init__(self, tasks: TaskSource, seed: int, strata: Sequence[str]) -> None:
        super().__init__(tasks, seed)
        numbers = {name: number for number, name in enumerate(sorted(set(strata)))}
        self._numbers = [numbers[name] for name in strata]
        self._sizes = [count for _, count in sorted(Counter(self._numbers).items())]
        self._quotas = lru_cache(maxsize=4)(self._make_quotas)
        self._passes = lru_cache(maxsize=2)(self._make_pass)

    def step(self, step: int, count: int) -> list[tuple[Task, int]]:
        """The (task, epoch) pairs of a step, from 0, that plays `count` tasks; earlier epochs come first."""
        quotas, places = self._quotas(count), list[tuple[int, int]]()
        begin, end = quotas.before(step), quotas.before(step + 1)
        for stratum in np.flatnonzero(end - begin).tolist():
            for position in range(int(begin[stratum]), int(end[stratum])):
                epoch, offset = divmod(position, self._sizes[stratum])
                places.append((epoch, self._passes(epoch)[stratum][offset]))
        return [(self._tasks[int(self._permutation(epoch)[at])], epoch) for epoch, at in sorted(places)]

    def _make_quotas(self, count: int) -> Quotas:
        return Quotas(self._sizes, count)

    def _make_pass(self, epoch: int) -> list[list[int]]:
        """By stratum, the places of its tasks in the permutation of a pass."""
        places: list[list[int]] = [[] for _ in self._sizes]
        for at, index in enumerate(self._permutation(epoch).tolist()):
            places[self._numbers[index]].append(at)
        return places
