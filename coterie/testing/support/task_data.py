"""The parts of `check_environment` about tasks: values; as data, records and back, fingerprints, pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.core.errors import type_text
from coterie.core.types import Task
from coterie.data.leaks import leaks
from coterie.discovery.members import DrawsTasks, FingerprintsTasks, RecordsTasks
from coterie.testing.support.failure import ConformanceError, guarded, require
from coterie.testing.support.promises import promise
from coterie.testing.support.values import copied, fingerprint

_PLAIN = "texts, numbers, true and false, null, lists and tables with texts as keys"


def check_data_methods(env: Any, name: str, tasks: Mapping[str, Sequence[Task]]) -> None:
    """Check `record`, `task_of`, `fingerprints` and `picture`, where the environment has them.

    Args:
        tasks: tasks of each split.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    all_tasks = [task for split_tasks in tasks.values() for task in split_tasks]
    if isinstance(env, RecordsTasks):
        promise("a record makes the same task again")
        for task in all_tasks:
            _check_round_trip(env, name, task)
        _check_invalid_record(env, name)
    if isinstance(env, FingerprintsTasks):
        promise("no two splits share a fingerprint")
        _check_fingerprints(env, name, tasks)
    if isinstance(env, DrawsTasks):
        promise("a picture is a text")
        for task in all_tasks:
            with guarded(f"{name}.picture"):
                picture = env.picture(task)
            require(isinstance(picture, str), f"returned {picture!r}", f"{name}.picture", fix="a text")


def _check_round_trip(env: Any, name: str, task: Task) -> None:
    """A task equals the one that `task_of` makes of its record, also after JSON and with more fields."""
    where, mark = f"{name}.record", fingerprint(task)
    with guarded(where):
        record, again = env.record(task), env.record(task)
    require(isinstance(record, Mapping), f"returned {record!r}", where, fix="a table")
    with guarded(where, _PLAIN):
        line = json.dumps(record, allow_nan=False)
    read = json.loads(line)
    require(
        read == record,
        f"of '{task.id}' reads otherwise after a round trip through JSON",
        where,
        fix=f"{_PLAIN}; no tuples",
    )
    require(
        read == json.loads(json.dumps(again)),
        "gives another record when called twice",
        where,
        fix="no draws, no counters",
    )
    require(fingerprint(task) == mark, f"changed the task '{task.id}'", where, fix="copy what it holds")
    where = f"{name}.task_of"
    for given, addition in ((read, ""), ({**read, "a note": "of a person"}, ", given one more field,")):
        with guarded(where, "accept what `record` wrote, and ignore further fields"):
            task_again = env.task_of(given, task.id)
        require(
            isinstance(task_again, Task) and fingerprint(task_again) == mark,
            f"of the record of '{task.id}'{addition} is another task",
            where,
            fix="write into the record all that the task is made of, its answer and stratum too",
        )


def _check_invalid_record(env: Any, name: str) -> None:
    """A record of another game gives a task or raises ValueError, nothing else."""
    where = f"{name}.task_of"
    try:
        task = env.task_of({"a note": "no task"}, "some-id")
    except ValueError:
        return
    except Exception as error:
        raise ConformanceError(
            f"raised {type(error).__name__} on a record that is no task: {error}",
            where=where,
            fix="raise a ValueError that names what is missing or wrong",
        ) from error
    require(isinstance(task, Task), f"returned {task!r}", where, fix="a task, or raise ValueError")


def _check_fingerprints(env: Any, name: str, tasks: Mapping[str, Sequence[Task]]) -> None:
    """Fingerprints are texts by name, repeat, and are in one split only."""
    where = f"{name}.fingerprints"
    marked: dict[str, list[tuple[str, Mapping[str, str]]]] = {}
    for split, split_tasks in tasks.items():
        for task in split_tasks:
            with guarded(where):
                marks, again = dict(env.fingerprints(task)), dict(env.fingerprints(task))
            texts = all(isinstance(text, str) for pair in marks.items() for text in pair)
            require(texts, f"returned {marks!r}", where, fix="texts by name")
            require(
                "content" in marks,
                f"of '{task.id}' lack `content`",
                where,
                fix="a text that is equal for two tasks that are the same problem",
            )
            require(marks == again, "differ when called twice", where, fix="no ids, no draws")
            marked.setdefault(split, []).append((task.id, marks))
    for shared in leaks(marked).shared:
        first, second = shared.examples[0]
        require(
            False,
            f"'{first}' and '{second}', of two splits, have the same {shared.kind}",
            where,
            fix=f"split by a hash of the {shared.kind}",
        )


def check_task(task: Any, same: Any, where: str) -> None:
    """Raise unless a task is a value: a text as its id, the same when read twice and after pickling."""
    require(isinstance(task, Task), f"a task is {type_text(task)}", where, fix="coterie.Task")
    is_text = isinstance(task.id, str) and bool(task.id)
    require(is_text, f"the id {task.id!r} is no text", where, fix='e.g. "train-7"')
    after_pickling = fingerprint(copied(task, where))
    mark = fingerprint(task)
    require(
        mark == fingerprint(same),
        f"'{task.id}' is another task when read twice",
        where,
        fix="derive the task from split, seed and index alone",
    )
    require(
        mark == after_pickling,
        f"'{task.id}' is another task after pickling",
        where,
        fix="plain data in the payload",
    )
