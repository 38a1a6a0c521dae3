"""The strata of tasks (`schedule.stratify`), their mix, and batches that keep it.

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
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import Environment, TaskSource
from coterie.core.training.curriculum import TaskOrder
from coterie.core.types import Task
from coterie.core.types.splits import Record
from coterie.discovery.members import RecordsTasks

log = logging.getLogger("coterie")
PATH = "schedule.stratify"
_NAMED = 3
"""Tasks that an error names."""
_CLASSES, _SHORT = 20, 40
"""Most values of a key that sorts tasks into classes; most characters of such a value."""


def task_order(stratify: bool | str, seed: int, environment: Environment, tasks: TaskSource) -> TaskOrder:
    """The order in which training plays these tasks.

    Args:
        stratify: `schedule.stratify`.

    Raises:
        ConfigError: there is no task, or one has no stratum under the key that `stratify` names.
    """
    if not stratify or len(tasks) == 0:
        return TaskOrder(tasks, seed)
    return StratifiedOrder(tasks, seed, strata(environment, tasks, stratify))


def strata(environment: Environment, tasks: TaskSource, stratify: bool | str) -> list[str]:
    """The stratum of each task: the one that the environment gives it, or its record's value of a key.

    Raises:
        ConfigError: tasks lack the key, or their value of it is no text, number or truth value.
    """
    listed = [tasks[index] for index in range(len(tasks))]
    if isinstance(stratify, bool):
        return [task.stratum for task in listed]
    records = [record_of(environment, task) for task in listed]
    missing = [at for at, record in enumerate(records) if record.get(stratify) is None]
    if missing:
        first = records[missing[0]]
        keys = [key for key in first if key != stratify]
        has = f"whose record has {', '.join(keys)}" if keys else "which has no record"
        why = f"such as {_some(listed, missing)}, {'where it is null' if stratify in first else has}"
        fix = f"set {PATH}=true, for the strata that the environment gives its tasks"
        raise ConfigError(
            f"{len(missing):,} of {len(listed):,} train tasks have no '{stratify}'",
            path=PATH,
            why=why,
            fix=f"{did_you_mean(stratify, keys)}; or {fix}" if keys else fix,
        )
    wrong = [at for at, record in enumerate(records) if not _is_scalar(record[stratify])]
    if wrong:
        raise ConfigError(
            f"'{stratify}' of {len(wrong):,} of {len(listed):,} tasks is no text, number or truth value",
            path=PATH,
            why=f"such as {_some(listed, wrong)}, which has {records[wrong[0]][stratify]!r:.60}",
            fix="name a key that sorts the tasks into a few classes",
        )
    return [_text(record[stratify]) for record in records]


def check_strata(environment: Environment, tasks: TaskSource, stratify: bool | str) -> None:
    """Ask for the strata of tasks before a run; warn where all tasks are of one.

    A source that makes its tasks when it is asked is only asked where a key may be missing.

    Raises:
        ConfigError: as `strata`.
    """
    listed = isinstance(tasks, (list, tuple))
    if stratify and (listed or stratify is not True) and len(set(strata(environment, tasks, stratify))) == 1:
        what = "%s=%s changes nothing: all %d train tasks are of one stratum"
        log.warning(what, PATH, _text(stratify), len(tasks))


def record_of(environment: Environment, task: Task) -> dict[str, Any]:
    """A task's record as one table, as `flat` makes it; empty: the environment has none."""
    if isinstance(environment, RecordsTasks):
        with plugin_call(environment, "record"):
            return flat(environment.record(task))
    return flat(task.payload) if isinstance(task.payload, Mapping) else {}


def metadata_of(record: Record) -> Mapping[str, Any]:
    """The table `metadata` of a record; empty: it has none."""
    metadata = record.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}


def flat(record: Record) -> dict[str, Any]:
    """The fields of a record and of its table `metadata`, which hide fields of the same name."""
    return {**record, **metadata_of(record)}


def mix(tables: Sequence[Mapping[str, Any]]) -> dict[str, Counter[str]]:
    """How many tables have which value, the most frequent first, of each key that sorts them into classes.

    Its values are short texts, truth values or whole numbers; there are at least two of them, at most 20, and
    fewer than tables.
    """
    keys = dict.fromkeys(key for table in tables for key in table)
    counts = {
        key: counted(table.get(key) for table in tables)
        for key in keys
        if all(_is_class(table.get(key)) for table in tables)
    }
    most = min(_CLASSES, len(tables) - 1)
    return {key: each for key, each in counts.items() if 1 < len(each) <= most}


def mix_lines(environment: Environment, tasks: TaskSource, stratify: bool | str) -> list[str]:
    """What a run says of its train tasks: the mix of their strata, and that of their records' classes."""
    if not stratify and not isinstance(tasks, (list, tuple)):
        return []
    listed = [tasks[index] for index in range(len(tasks))]
    counts = mix([metadata_of(record_of(environment, task)) for task in listed])
    if stratify:
        name = stratify if isinstance(stratify, str) else "stratum"
        counts = {name: counted(strata(environment, tasks, stratify)), **counts}
    return [f"{len(tasks):,} train tasks, by {name}: {mix_text(each)}" for name, each in counts.items()]


def mix_text(counts: Mapping[str, int]) -> str:
    """A mix on one line, such as `regression 34, classification 30`."""
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def counted(values: Iterable[Any]) -> Counter[str]:
    """How often each value is there, the most frequent first; what is no scalar counts as `none`."""
    counts = Counter(_text(value) if _is_scalar(value) else "none" for value in values)
    return Counter(dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))))


def _is_class(value: Any) -> bool:
    """Whether a value may name a class: a measure, or a text of many words, does not."""
    return (
        value is None or isinstance(value, (bool, int)) or (isinstance(value, str) and len(value) <= _SHORT)
    )


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _some(tasks: Sequence[Task], places: Sequence[int]) -> str:
    more = f" and {len(places) - _NAMED:,} more" if len(places) > _NAMED else ""
    return ", ".join(tasks[at].id for at in places[:_NAMED]) + more


# ---------------------------------------------------------------------------------- batches that keep the mix


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
