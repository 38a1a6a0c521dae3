"""What `check_environment` asks of tasks as data: records and back, fingerprints, pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.core.types import Task
from coterie.data.leaks import leaks
from coterie.testing.support.failure import ConformanceError, guarded, require
from coterie.testing.support.values import fingerprint

_PLAIN = "texts, numbers, true and false, null, lists and tables with texts as keys"


def check_data_methods(env: Any, name: str, tasks: Mapping[str, Sequence[Task]]) -> None:
    """Hold `record`, `task_of`, `fingerprints` and `picture`, where the environment has them.

    Args:
        tasks: of each split.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    both = [hasattr(env, method) for method in ("record", "task_of")]
    require(
        both[0] == both[1],
        f"has {'`record`' if both[0] else '`task_of`'} alone",
        where=name,
        fix="`record` writes a task and `task_of` reads it: have both, or neither",
    )
    every = [task for of_split in tasks.values() for task in of_split]
    if all(both):
        for task in every:
            _there_and_back(env, name, task)
        _no_task(env, name)
    if hasattr(env, "fingerprints"):
        _apart(env, name, tasks)
    if hasattr(env, "picture"):
        for task in every:
            with guarded(f"{name}.picture"):
                drawn = env.picture(task)
            require(isinstance(drawn, str), f"returned {drawn!r}", where=f"{name}.picture", fix="a text")


def _there_and_back(env: Any, name: str, task: Task) -> None:
    where, mark = f"{name}.record", fingerprint(task)
    with guarded(where):
        record, again = env.record(task), env.record(task)
    require(isinstance(record, Mapping), f"returned {record!r}", where=where, fix="a table")
    with guarded(where, _PLAIN):
        line = json.dumps(record, allow_nan=False)
    read = json.loads(line)
    require(
        read == record,
        f"of '{task.id}' reads otherwise after a way through JSON",
        where=where,
        fix=f"{_PLAIN}; no tuples",
    )
    require(read == json.loads(json.dumps(again)), "gives another record when asked twice", where=where)
    require(fingerprint(task) == mark, f"changed the task '{task.id}'", where=where, fix="copy what it holds")
    where = f"{name}.task_of"
    for given, what in ((read, ""), ({**read, "a note": "of a person"}, ", given one more field,")):
        with guarded(where, "what `record` wrote is a task; more fields than that do no harm"):
            back = env.task_of(given, task.id)
        require(
            isinstance(back, Task) and fingerprint(back) == mark,
            f"of the record of '{task.id}'{what} is another task",
            where=where,
            fix="write into the record whatever the task is made of, its answer and stratum too",
        )


def _no_task(env: Any, name: str) -> None:
    """A record of another game is a person's mistake, and told as one."""
    where = f"{name}.task_of"
    try:
        found = env.task_of({"a note": "no task"}, "some-id")
    except ValueError:
        return
    except Exception as error:
        raise ConformanceError(
            f"raised {type(error).__name__} on a record that is no task: {error}",
            where=where,
            fix="raise a ValueError that says what is missing or wrong",
        ) from error
    require(isinstance(found, Task), f"returned {found!r}", where=where, fix="a task, or raise ValueError")


def _apart(env: Any, name: str, tasks: Mapping[str, Sequence[Task]]) -> None:
    where = f"{name}.fingerprints"
    marked: dict[str, list[tuple[str, Mapping[str, str]]]] = {}
    for split, of_split in tasks.items():
        for task in of_split:
            with guarded(where):
                marks, again = dict(env.fingerprints(task)), dict(env.fingerprints(task))
            texts = all(isinstance(one, str) for pair in marks.items() for one in pair)
            require(texts, f"returned {marks!r}", where=where, fix="texts by name")
            require(
                "content" in marks, f"of '{task.id}' lack `content`", where=where, fix="what makes it itself"
            )
            require(marks == again, "are others when asked for twice", where=where, fix="no ids, no draws")
            marked.setdefault(split, []).append((task.id, marks))
    for shared in leaks(marked).shared:
        one, other = shared.examples[0]
        require(
            False,
            f"'{one}' and '{other}', of two splits, have the same {shared.kind}",
            where=where,
            fix=f"split by a hash of the {shared.kind}",
        )
