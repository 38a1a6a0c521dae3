"""Tasks of environments that read a data source: records, checked, and kept apart by content."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

from coterie.core.errors import ConfigError, DataError
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import DataSource
from coterie.core.types import Task
from coterie.core.types.splits import SPLITS, Split

log = logging.getLogger("coterie")

NAMED = 5
"""Places that a warning names."""


@runtime_checkable
class LocatesRecords(Protocol):
    def where(self, index: int) -> tuple[str, int]:
        """A record's file and line, counted from 1."""


class RecordTasks:
    """The tasks of all splits. Problems of val and test are left out of train, and those of test out of val
    of a published set, each with a warning.

    Args:
        sources: by split, what gives the records.
        make: (record, id) -> task; ValueError: the record is none of this environment.
        content: of a task, what no two splits may share.
        path: of the environment in the configuration.
        page: of the documentation, with the fields of a record.
    """

    def __init__(
        self,
        sources: Mapping[Split, DataSource],
        make: Callable[[Mapping[str, Any], str], Task],
        content: Callable[[Task], str],
        *,
        path: str,
        page: str,
    ) -> None:
        self._sources, self._make, self._content = sources, make, content
        self._path, self._page = path, page
        self._read: dict[Split, tuple[Task, ...]] = {}
        self._kept: dict[Split, tuple[Task, ...]] = {}
        self.elsewhere: Callable[[], Sequence[Task]] = tuple
        """The tasks that are evaluated besides val and test."""
        self.places: dict[str, str] = {}
        """By id of a task, the file and line of its record."""

    def tasks(self, split: Split, seed: int = 0) -> tuple[Task, ...]:
        """A split's tasks, in the order of the records, whatever the seed.

        Raises:
            DataError: a record is no problem of this environment, or has the id of an earlier one.
            ConfigError: the split is empty or isn't configured, a problem of test is also in val where
                the records are the user's, or all of train or val is also evaluated.
        """
        if split not in self._kept:
            tasks = self._tasks(split)
            if "val" not in self._kept and (val := self._optional("val")):
                self._kept["val"] = self._without_test(val)
            if split != "val":
                self._kept[split] = self._without_evaluated(tasks) if split == "train" else tasks
        return self._kept[split]

    def _tasks(self, split: Split) -> tuple[Task, ...]:
        """All tasks of a split's records."""
        if split not in self._read:
            self._read[split] = self._made(split)
        return self._read[split]

    def _made(self, split: Split) -> tuple[Task, ...]:
        with plugin_call(self._sources[split], "records"):
            records = self._sources[split].records(split)
        where = partial(place_of, records, unnamed=f"split {split}")
        tasks = tuple(self._task(split, index, record, where) for index, record in enumerate(records))
        if not tasks:
            fix = "name more records: those of one file are divided by a hash, a tenth each for val and test"
            raise ConfigError(f"split '{split}' has no records", path=f"data.{split}", fix=fix)
        first: dict[str, int] = {}
        for index, task in enumerate(tasks):
            if (earlier := first.setdefault(task.id, index)) < index:
                file, line = where(earlier)
                what = f"'{task.id.removeprefix(f'{split}-')}' is also the id of line {line} of {file}"
                raise DataError(*where(index), "id", what, fix="give each record another id")
        for at, task in enumerate(tasks):
            self.places[task.id] = "{}:{}".format(*where(at))
        if not getattr(self._sources[split], "published", False):
            warn_of_repeats(f"{self._path}: split '{split}'", tasks, self._content, self.places)
        return tasks

    def _task(
        self, split: Split, index: int, record: Mapping[str, Any], where: Callable[[int], tuple[str, int]]
    ) -> Task:
        given = record.get("id")
        if isinstance(given, int) and not isinstance(given, bool):
            record = {**record, "id": str(given)}
        try:
            return self._make(record, f"{split}-{record.get('id') or index}")
        except ValueError as error:
            fix = f"{self._page} has the fields of a record"
            raise DataError(*where(index), "-", str(error), fix=fix) from None

    def _without_test(self, val: tuple[Task, ...]) -> tuple[Task, ...]:
        """The tasks of val that test doesn't have.

        Raises:
            ConfigError: test has some, and the records are the user's, who can choose others; or it has all.
        """
        tested = {self._content(task): task.id for task in self._optional("test")}
        shared = {task.id: tested[text] for task in val if (text := self._content(task)) in tested}
        if not shared:
            return val
        ours, theirs = next(iter(shared.items()))
        if not getattr(self._sources["val"], "published", False) or len(shared) == len(val):
            raise ConfigError(
                f"the problem '{theirs}' is also in val, as '{ours}'",
                path="data.test",
                why=f"val and test share {len(shared)} of {len(val)} problems of val",
                fix="give val and test other records",
            )
        log.warning(
            "%d of %d val problems are also in test and are left out of val: %s (= %s)%s",
            *(len(shared), len(val), ours, theirs, ", ..." if len(shared) > 1 else ""),
        )
        return tuple(task for task in val if task.id not in shared)

    def _optional(self, split: Split) -> tuple[Task, ...]:
        """A split's tasks; none where the source doesn't give it."""
        try:
            return self._tasks(split)
        except ConfigError as error:
            log.info("%s: no problem is compared with those of '%s': %s", self._path, split, error)
            return ()

    def _without_evaluated(self, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
        evaluated = {
            self._content(task): task.id
            for split in SPLITS
            if split != "train"
            for task in self._optional(split)
        } | {self._content(task): task.id for task in self.elsewhere()}
        shared = [(task.id, evaluated[text]) for task in tasks if (text := self._content(task)) in evaluated]
        if shared:
            named = ", ".join(f"{ours} (= {theirs})" for ours, theirs in shared[:3])
            log.warning(
                "%d of %d train problems are also evaluated and are left out of train: %s%s",
                *(len(shared), len(tasks), named, ", ..." if len(shared) > 3 else ""),
            )
        left_out = {ours for ours, _ in shared}
        kept = tuple(task for task in tasks if task.id not in left_out)
        if not kept:
            raise ConfigError(
                "every problem of train is also evaluated",
                path="data.train",
                fix="give train other records than val and test",
            )
        return kept


def warn_of_repeats(
    what: str, tasks: Sequence[Task], content: Callable[[Task], str], places: Mapping[str, str]
) -> None:
    """Warn of tasks with the same content under several ids: they count as often in every mean."""
    first: dict[str, Task] = {}
    pairs = [(task, first.setdefault(content(task), task)) for task in tasks]
    repeats = [(places[task.id], places[other.id]) for task, other in pairs if other is not task]
    if repeats:
        named = ", ".join(f"{ours} (= {theirs})" for ours, theirs in repeats[:NAMED])
        more = f" and {len(repeats) - NAMED} more" if len(repeats) > NAMED else ""
        text = "%s: %d of %d problems repeat another's content under an id of their own: %s%s"
        log.warning(text, what, len(repeats), len(tasks), named, more)


def place_of(records: Sequence[Any], index: int, unnamed: str) -> tuple[str, int]:
    """File and line of a record; of a source that has no files, `unnamed` and the record's number."""
    return records.where(index) if isinstance(records, LocatesRecords) else (unnamed, index + 1)
