"""What `coterie data leaks` compares: fingerprints of tasks, contents of records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from coterie.core.errors import UserError
from coterie.core.protocols import Environment, TaskSource
from coterie.core.training.curriculum import trained_on
from coterie.core.training.run import Run
from coterie.core.types import Task
from coterie.core.types.digest import digest
from coterie.core.types.splits import Row, content
from coterie.data.sources import ending_of, read_rows, split_files, task_sources
from coterie.data.task_files import MANIFEST, read_manifest

Marks = dict[str, Iterator[tuple[str, dict[str, str]]]]
"""By split: id and fingerprints of each task."""


class Scope(NamedTuple):
    """What was compared."""

    there: dict[str, int]
    """By split: how many tasks there are, of which the first were compared."""
    notes: list[str]


def task_marks(run: Run, most: int | None) -> tuple[Marks, Scope]:
    """The fingerprints of an environment's tasks, of the first `most` of each split.

    Under a curriculum the train tasks are those that training plays: of each level, the first `most`.
    """
    sources, notes = task_sources(run)
    parts = {split: [(run.environment, tasks)] for split, tasks in sources.items()}
    if run.curriculum is not None:
        parts["train"] = trained_on(run.environment, run.curriculum, run.config.seed)
        notes.append(f"the train tasks are those of the {len(parts['train'])} levels of env.curriculum")
    kind = str(run.config.env["type"])
    if not hasattr(run.environment, "fingerprints"):
        notes.append(f"the environment '{kind}' gives no fingerprints: a digest of each payload is compared")

    def of(part: Sequence[tuple[Environment, TaskSource]]) -> Iterator[tuple[str, dict[str, str]]]:
        for environment, tasks in part:
            for index in range(min(len(tasks), most or len(tasks))):
                task = tasks[index]
                yield task.id, _fingerprints(environment, task, kind)

    return (
        {split: of(part) for split, part in parts.items()},
        Scope({split: sum(len(tasks) for _, tasks in part) for split, part in parts.items()}, notes),
    )


def record_marks(
    names: Sequence[str], folder: Path | None, keys: Sequence[str], most: int | None
) -> tuple[Marks, Scope]:
    """The contents of records, of the first `most` of each file; a folder's keys are those it was cut by."""
    notes: list[str] = []
    files: Mapping[str, Path] = _of(folder) if folder is not None else _named(names)
    if not keys and folder is not None and (folder / MANIFEST).is_file():
        keys = tuple(read_manifest(folder).get("keys") or ())
    rows = {name: read_rows(path) for name, path in files.items()}
    if not keys and any("id" in row.record for part in rows.values() for row in part[:1]):
        notes.append("every field but 'id' is content; --key FIELD names those that are")

    def of(part: list[Row]) -> Iterator[tuple[str, dict[str, str]]]:
        for row in part[:most]:
            yield f"line {row.line}", {"content": content(row, keys, ("id",))}

    return (
        {name: of(part) for name, part in rows.items()},
        Scope({name: len(part) for name, part in rows.items()}, notes),
    )


def _of(folder: Path) -> dict[str, Path]:
    return {str(split): path for split, path in split_files(folder).items()}


def _named(names: Sequence[str]) -> dict[str, Path]:
    """Files by their name without its ending, where that tells them apart."""
    paths = [Path(name) for name in names]
    if len(set(paths)) < len(paths):
        raise UserError("a file is named twice", why=" ".join(names))
    short = {path.name.removesuffix(ending_of(path) or ""): path for path in paths}
    return short if len(short) == len(paths) else {str(path): path for path in paths}


def _fingerprints(environment: Environment, task: Task, kind: str) -> dict[str, str]:
    """What no two splits may share; of an environment that doesn't say, a digest of payload and answer.

    Raises:
        UserError: it doesn't say, and the payload can't be digested.
    """
    own = getattr(environment, "fingerprints", None)
    if own is not None:
        return dict(own(task))
    try:
        return {"payload": digest((task.payload, task.answer))}
    except TypeError as error:
        raise UserError(
            f"the tasks of the environment '{kind}' can't be compared",
            why=str(error),
            fix="give the environment a fingerprints(task)",
        ) from error
