"""Leaks: fingerprints of tasks, or contents of records, that occur in more than one split."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, NamedTuple

from coterie.compose import RolloutParts
from coterie.core.errors import UserError
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import Environment, TaskSource
from coterie.core.training.curriculum import trained_on
from coterie.core.types import Task
from coterie.core.types.digest import digest
from coterie.core.types.splits import RecordLine, content
from coterie.data.sources import ending_of, read_rows, split_files, task_sources
from coterie.data.task_files import MANIFEST, read_manifest
from coterie.discovery.members import FingerprintsTasks

Fingerprints = dict[str, Iterator[tuple[str, dict[str, str]]]]
"""By split: the id and the fingerprints, by kind, of each task."""
EXAMPLES = 3
"""Most pairs of ids that a leak holds as examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFingerprints:
    """Fingerprints of one kind that occur in two splits, or more than once in one."""

    kind: str
    splits: tuple[str, str]
    """Two splits; the same one twice for repeats within it."""
    count: int
    """Distinct fingerprints."""
    tasks: tuple[int, int]
    """Tasks of each split with one of these fingerprints; for repeats, twice those beyond the first."""
    examples: tuple[tuple[str, str], ...]
    """Pairs of task ids, one of each split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaks:
    """Fingerprints that splits share, and those that repeat within one."""

    sizes: dict[str, int]
    """Number of compared tasks, by split."""
    shared: tuple[SharedFingerprints, ...]
    repeats: tuple[SharedFingerprints, ...]


def leaks(splits: Mapping[str, Iterable[tuple[str, Mapping[str, str]]]]) -> Leaks:
    """Compare the fingerprints of every pair of splits.

    Args:
        splits: name -> (id, {kind: fingerprint}) of each of its tasks.
    """
    sizes: dict[str, int] = {}
    seen: dict[str, dict[str, dict[bytes, list[str]]]] = {}  # kind -> split -> digest -> ids
    for split, tasks in splits.items():
        sizes[split] = 0
        for task, fingerprints in tasks:
            sizes[split] += 1
            for kind, fingerprint in fingerprints.items():
                by_split = seen.setdefault(kind, {})
                by_split.setdefault(split, {}).setdefault(_hashed(fingerprint), []).append(task)
    shared: list[SharedFingerprints] = []
    repeats: list[SharedFingerprints] = []
    for kind, by_split in seen.items():
        present = [name for name in splits if name in by_split]
        for pair in combinations_with_replacement(present, 2):
            (first, second), repeat = (by_split[name] for name in pair), pair[0] == pair[1]
            common = [each for each, ids in first.items() if (len(ids) > 1 if repeat else each in second)]
            leak = SharedFingerprints(
                kind=kind,
                splits=pair,
                count=len(common),
                tasks=(
                    sum(len(first[each]) - repeat for each in common),
                    sum(len(second[each]) - repeat for each in common),
                ),
                examples=tuple((first[each][0], second[each][repeat]) for each in common[:EXAMPLES]),
            )
            if common:
                (repeats if repeat else shared).append(leak)
    return Leaks(sizes=sizes, shared=tuple(shared), repeats=tuple(repeats))


class DifferingAnswers:
    """What tasks of equal content have beside it. A problem with two answers is worth a look.

    Args:
        rest: what is compared, in words.
    """

    def __init__(self, rest: str) -> None:
        self._rest = rest
        self._first: dict[bytes, tuple[str, bytes]] = {}
        self._differing: dict[bytes, str] = {}

    def add(self, content: str, task: str, rest: str) -> None:
        """Compare a task with the first of the same content."""
        key, value = _hashed(content), _hashed(rest)
        other, first = self._first.setdefault(key, (task, value))
        if first != value:
            self._differing.setdefault(key, f"{other} and {task}")

    def notes(self) -> list[str]:
        """The number of contents with different answers, and the first of them; empty where there is none."""
        if not self._differing:
            return []
        count, first = len(self._differing), next(iter(self._differing.values()))
        return [f"{count:,} of the repeated contents have different {self._rest}, such as {first}"]


class Scope(NamedTuple):
    """The tasks from which those that are compared were taken."""

    sizes: dict[str, int]
    """By split: number of its tasks, of which the first are compared."""
    notes: list[str]
    answers: DifferingAnswers
    """Complete once the fingerprints have been read."""


def task_fingerprints(run: RolloutParts, most: int | None) -> tuple[Fingerprints, Scope]:
    """The fingerprints of the first `most` tasks of each split of an environment; None: of all.

    With a curriculum, the train tasks are the first `most` of each of its levels.
    """
    sources, notes = task_sources(run)
    parts = {split: [(run.environment, tasks)] for split, tasks in sources.items()}
    if run.curriculum is not None:
        parts["train"] = trained_on(run.environment, run.curriculum, run.config.seed)
        notes.append(f"the train tasks are those of the {len(parts['train'])} levels of env.curriculum")
    kind = str(run.config.env["type"])
    if not isinstance(run.environment, FingerprintsTasks):
        notes.append(
            f"the environment '{kind}' gives no fingerprints: digests of the payloads, without a field 'id', "
            "are compared"
        )
    answers = DifferingAnswers("answers")

    def fingerprints_of(
        part: Sequence[tuple[Environment, TaskSource]],
    ) -> Iterator[tuple[str, dict[str, str]]]:
        for environment, tasks in part:
            for index in range(min(len(tasks), most or len(tasks))):
                task = tasks[index]
                fingerprints = _fingerprints(environment, task, kind)
                if "content" in fingerprints:
                    answers.add(fingerprints["content"], task.id, repr(task.answer))
                yield task.id, fingerprints

    sizes: dict[str, int] = {split: sum(len(tasks) for _, tasks in part) for split, part in parts.items()}
    return {split: fingerprints_of(part) for split, part in parts.items()}, Scope(sizes, notes, answers)


def record_fingerprints(
    names: Sequence[str], folder: Path | None, keys: Sequence[str], most: int | None
) -> tuple[Fingerprints, Scope]:
    """The contents of the first `most` records of each file; None: of all.

    Without `keys`, a folder's are those of its manifest.
    """
    notes: list[str] = []
    files = _files_by_name(names)
    if folder is not None:
        files = {str(split): path for split, path in split_files(folder).items()}
    if not keys and folder is not None and (folder / MANIFEST).is_file():
        keys = tuple(read_manifest(folder).get("keys") or ())
    rows = {name: read_rows(path) for name, path in files.items()}
    if not keys and any("id" in row.record for part in rows.values() for row in part[:1]):
        notes.append("every field but 'id' is content; --key FIELD names those that are")

    answers = DifferingAnswers("values in other fields")

    def contents_of(name: str, part: list[RecordLine]) -> Iterator[tuple[str, dict[str, str]]]:
        for row in part[:most]:
            text = content(row, keys, ("id",))
            answers.add(text, f"line {row.line} of {name}", content(row, ignore=("id", *keys)))
            yield f"line {row.line}", {"content": text}

    return (
        {name: contents_of(name, part) for name, part in rows.items()},
        Scope({name: len(part) for name, part in rows.items()}, notes, answers),
    )


def _hashed(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _files_by_name(names: Sequence[str]) -> dict[str, Path]:
    """Files by their name without its ending where these names differ, else by their path."""
    paths = [Path(name) for name in names]
    if len(set(paths)) < len(paths):
        raise UserError("a file is named twice", why=" ".join(names))
    short = {path.name.removesuffix(ending_of(path) or ""): path for path in paths}
    return short if len(short) == len(paths) else {str(path): path for path in paths}


def _fingerprints(environment: Environment, task: Task, kind: str) -> dict[str, str]:
    """The environment's fingerprints of a task; without such a method, a digest of payload and answer.

    The digest leaves a payload's field `id` out: equal problems have different ids.

    Raises:
        UserError: there is no such method, and the payload can't be digested.
    """
    if isinstance(environment, FingerprintsTasks):
        with plugin_call(environment, "fingerprints"):
            return dict(environment.fingerprints(task))
    try:
        return {"payload": digest((_without_id(task.payload), task.answer))}
    except TypeError as error:
        raise UserError(
            f"the tasks of the environment '{kind}' can't be compared",
            why=str(error),
            fix="give the environment a fingerprints(task)",
        ) from error


def _without_id(payload: Any) -> Any:
    """A payload without its field `id`: of a mapping the other items, of a dataclass the other fields."""
    if isinstance(payload, Mapping):
        return {name: value for name, value in payload.items() if name != "id"}
    if dataclasses.is_dataclass(payload) and not isinstance(payload, type):
        fields = [field.name for field in dataclasses.fields(payload)]
        if "id" in fields:
            return {name: getattr(payload, name) for name in fields if name != "id"}
    return payload
