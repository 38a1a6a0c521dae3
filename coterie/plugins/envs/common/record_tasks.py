"""Tasks of environments that read a data source: records, checked, and kept apart by content."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from coterie.core.errors import ConfigError, DataError
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import DataSource
from coterie.core.types import Task
from coterie.core.types.splits import SPLITS, Split

log = logging.getLogger("coterie")


@runtime_checkable
class LocatesRecords(Protocol):
    def where(self, index: int) -> tuple[str, int]:
        """A record's file and line, counted from 1."""


class RecordTasks:
    """The tasks of all splits. Problems of val and test are left out of train, with a warning.

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

    def tasks(self, split: Split, seed: int = 0) -> tuple[Task, ...]:
        """A split's tasks, in the order of the records, whatever the seed.

        Raises:
            DataError: a record is no problem of this environment.
            ConfigError: the split is empty or isn't configured, a problem of test is also in val, or all of
                train is also evaluated.
        """
        if split not in self._read:
            tasks = self._tasks(split)
            if split == "train":
                tasks = self._without_evaluated(tasks)
            if split == "test":
                self._check_test(tasks)
            self._read[split] = tasks
        return self._read[split]

    def _tasks(self, split: Split) -> tuple[Task, ...]:
        with plugin_call(self._sources[split], "records"):
            records = self._sources[split].records(split)
        tasks = tuple(self._task(split, index, record, records) for index, record in enumerate(records))
        if not tasks:
            raise ConfigError(
                f"split '{split}' has no problems", path=f"data.{split}", fix="name other records"
            )
        return tasks

    def _task(self, split: Split, index: int, record: Mapping[str, Any], records: Sequence[Any]) -> Task:
        try:
            return self._make(record, f"{split}-{record.get('id') or index}")
        except ValueError as error:
            file, line = f"split {split}", index + 1
            if isinstance(records, LocatesRecords):
                file, line = records.where(index)
            raise DataError(
                file, line, "-", str(error), fix=f"{self._page} has the fields of a record"
            ) from None

    def _check_test(self, tasks: tuple[Task, ...]) -> None:
        known = {self._content(task): task.id for task in self._optional("val")}
        for task in tasks:
            other = known.get(self._content(task))
            if other is not None:
                raise ConfigError(
                    f"the problem '{task.id}' is also in val, as '{other}'",
                    path="data.test",
                    fix="give val and test other records",
                )

    def _optional(self, split: Split) -> tuple[Task, ...]:
        """A split's tasks; none where the source doesn't give it."""
        try:
            return self.tasks(split)
        except ConfigError as error:
            log.info("%s: no problem is compared with those of '%s': %s", self._path, split, error)
            return ()

    def _without_evaluated(self, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
        evaluated = {
            self._content(task): task.id
            for split in SPLITS
            if split != "train"
            for task in self._optional(split)
        }
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
