"""The tasks of environment `data_science`: records of a task pack, checked before a run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.core.errors import ConfigError, DataError
from coterie.core.protocols import DataSource, Limits
from coterie.core.types import Task
from coterie.core.types.splits import SPLITS, Split
from coterie.plugins.envs.common.record_tasks import RecordTasks
from coterie.plugins.envs.data_science.config import ROLES
from coterie.plugins.envs.data_science.packs import measured
from coterie.plugins.envs.data_science.state import CompetitionTask

_TEXTS = ("task_id", "train_file", "test_file", "answer_dir")
_BEGIN = 1 << 16
"""Bytes of a train table that tell it from another."""
_SPACE = re.compile(r"\s+")
_HEADER = 2000
"""Characters of a table's header that a role sees."""


class Competitions:
    """The tasks of all splits; those of val and test are left out of train.

    Args:
        data: gives the records.
        limits: of a role's programs.
        path: of the environment in the configuration.
    """

    def __init__(self, data: DataSource, limits: Callable[[str], Limits], path: str) -> None:
        self._disk = {role: limits(role).disk_mb for role in ROLES}
        self._path, page = path, "docs/data_science.md"
        self._tasks = RecordTasks(dict.fromkeys(SPLITS, data), _named, content, path=path, page=page)
        self.places = self._tasks.places
        """By id of a task, the file and line of its record."""

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        """A split's tasks.

        Raises:
            DataError: as `task_of`, with the record's file and line.
            ConfigError: a task's tables don't fit into the disk of a role, or as `RecordTasks.tasks`.
        """
        listed = self._tasks.tasks(split, seed)
        role, disk = min(self._disk.items(), key=lambda item: item[1])
        for task in listed:
            size = sum(place.stat().st_size for place in task.payload.tables.values())
            if size > disk << 20:
                raise ConfigError(
                    f"the tables of task '{task.id}' take {size / 2**20:,.1f} MB",
                    path=f"{self._path}.limits.disk_mb",
                    why=f"the files of a program of the {role} may take {disk:,} MB",
                    fix="raise disk_mb, and workspace_mb with it, or leave the task out",
                )
        return listed


def _named(record: Mapping[str, Any], id: str) -> Task:
    """The task of a record, with an id of its split and its own."""
    metadata = record.get("metadata")
    name = metadata.get("task_id") if isinstance(metadata, Mapping) else None
    return task_of(record, id if name is None else f"{id.partition('-')[0]}-{name}")


def task_of(record: Mapping[str, Any], id: str) -> Task:
    """The task of a record.

    Raises:
        ValueError: it is no record of a task pack, nothing says how the task is scored, or what says it is
            wrong.
    """
    metadata = record.get("metadata")
    if not isinstance(metadata, Mapping):
        raise ValueError("the field 'metadata' is no table")
    texts = {"prompt": record.get("prompt"), **{f"metadata.{key}": metadata.get(key) for key in _TEXTS}}
    for field, text in texts.items():
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"the field '{field}' is no text: {text!r:.60}")
    try:
        whole = measured(record, file="", line=0)
    except DataError as error:
        raise ValueError(error.what.removeprefix(", line 0, ")) from None
    return Task(
        id=id,
        payload=CompetitionTask(text=whole["prompt"], metadata=whole["metadata"]),
        answer=record.get("answer"),
        stratum=whole["metadata"]["kind"],
    )


def content(task: Task) -> str:
    """The task's description, whatever its white space and letter case, and how its train table begins.

    Competitions of one's own may all say "predict the target"; their tables tell them apart.
    """
    try:
        with Path(task.payload.metadata["train_file"]).open("rb") as file:
            begin = hashlib.sha256(file.read(_BEGIN)).hexdigest()
    except (KeyError, TypeError, OSError):  # a record that is not here
        begin = ""
    return f"{_SPACE.sub(' ', task.payload.text).strip().lower()} {begin}".rstrip()


def data_lines(task: CompetitionTask) -> tuple[str, ...]:
    """The task's tables in words: where programs find them, their sizes and their columns."""
    return tuple(f"{path}: {_table_text(place)}" for path, place in task.tables.items())


def _table_text(place: Path) -> str:
    try:
        with place.open(encoding="utf-8", errors="replace") as file:
            header = file.readline(_HEADER).strip()
        return f"{place.stat().st_size:,} bytes, with the columns {header}"
    except OSError as error:
        return f"can't be read ({error.strerror})"
