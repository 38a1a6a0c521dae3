"""The parts of `check_environment` about tasks, final answers, work, digests, and tasks as data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coterie.core.errors import UserError, type_text
from coterie.core.types import Action, Task
from coterie.data.leaks import leaks
from coterie.discovery.members import (
    DrawsTasks,
    FingerprintsTasks,
    GivesFinalAnswers,
    RecordsTasks,
    ShowsWork,
)
from coterie.plugins.rewards.coach.shown import brief_fault, work_fault
from coterie.testing.support.episodes import Players, initial_stage
from coterie.testing.support.failure import ConformanceError, guarded, require, warn
from coterie.testing.support.opening import SOURCE_FIX
from coterie.testing.support.promises import promise
from coterie.testing.support.values import copied, fingerprint, unchanged


def check_final_answer(
    env: Any, name: str, task: Task, played: Sequence[tuple[Mapping[str, Action], Mapping[str, Any]]]
) -> None:
    """Check what the environment takes for the answer of an ended episode, where it says it.

    Args:
        played: the actions by role and the `Step.info` of each step.

    Raises:
        ConformanceError: it is neither a text nor None, or another one when asked again.
    """
    if not isinstance(env, GivesFinalAnswers):
        return
    promise("a final answer is a text or None")
    where = f"{name}.final_answer"
    with guarded(where):
        answer, again = env.final_answer(task, played), env.final_answer(task, played)
    fix = "a text that equal answers share, or None where there is no answer"
    require(answer is None or isinstance(answer, str), f"returned {answer!r:.60}", where, fix=fix)
    require(answer == again, "differs when called twice", where, fix="no draws")


def check_work(
    env: Any,
    name: str,
    task: Task,
    roles: Iterable[str],
    info: Mapping[str, Any],
    order: Iterable[Sequence[str]],
) -> None:
    """`brief` gives a Brief, and `work` a Work of texts, also for the empty info of a failed step.

    Args:
        roles: that acted; `order`: all roles, by stage.
    """
    if not isinstance(env, ShowsWork):
        return
    promise("a brief and work are texts")
    with guarded(f"{name}.brief"):
        brief, other = env.brief(task), env.brief(task)
    wrong = brief_fault(brief, [role for stage in order for role in stage])
    require(not wrong, wrong, f"{name}.brief", fix="a coterie.Brief of texts")
    require(brief == other, "gives another one when called twice", f"{name}.brief", fix="no draws")
    where = f"{name}.work"
    for role in roles:
        for given in (info, {}):
            fix = "`info` is empty where the step of an action failed: use info.get"
            with unchanged(given, "the info", where), guarded(where, fix):
                work, again = env.work(role, given), env.work(role, given)
            wrong = work_fault(work)
            require(not wrong, wrong, where, fix="a coterie.Work of texts")
            require(work == again, "gives another one when called twice", where, fix="no draws")


class SeenDigests:
    """The digests of the states of one environment, each with what its roles see.

    Args:
        name: of the environment's class.
    """

    def __init__(self, name: str) -> None:
        self._where = f"{name}.digest"
        self._seen: dict[tuple[str, str, str], tuple[str, Any]] = {}

    def note(self, task: str, digest: str, observations: Mapping[str, Any]) -> None:
        """Keep a state of a task.

        Raises:
            ConformanceError: another state of the task has its digest, and shows a role something else.
        """
        for role, observation in observations.items():
            mark = fingerprint(observation)
            before, shown = self._seen.setdefault((task, digest, role), (mark, observation))
            require(
                before == mark,
                f"is {digest!r:.80} for two states of '{task}' that show '{role}' {shown!r:.80} and "
                f"{observation!r:.80}",
                self._where,
                fix="digest every value of the state that a role sees or a later step reads; without a "
                "`digest` the core makes one",
            )


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


_TASKS_A_SPLIT = 50
"""Largest number of tasks to check of a split."""
_BY_HASH = "split by a hash of the content"


def checked_tasks(
    env: Any, name: str, splits: Sequence[str], seed: int, disjoint: str | None
) -> dict[str, list[Task]]:
    """The first tasks of every split, checked. Splits after the first may be refused with a UserError.

    Args:
        disjoint: with "content" no two splits may share a payload.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    promise("tasks repeat, and each is in one split")
    where = f"{name}.tasks"
    tasks_of_splits: dict[str, list[Task]] = {}
    split_of_id: dict[str, str] = {}
    split_of_content: dict[str, str] = {}
    for split in splits:
        try:
            with guarded(where, SOURCE_FIX):
                source = env.tasks(split, seed)
                count = min(len(source), _TASKS_A_SPLIT)
                first, again = ([source[index] for index in range(count)] for _ in range(2))
        except ConformanceError as error:
            if isinstance(error.__cause__, UserError) and split != splits[0]:
                continue  # the environment has no such split
            raise
        fix = "give at least one, or raise coterie.UserError for a split that the game doesn't have"
        require(first, f"the split '{split}' has no task", where, fix=fix)
        for task, same in zip(first, again, strict=True):
            check_task(task, same, where)
            first_split = split_of_id.setdefault(task.id, split)
            require(
                first_split == split,
                f"the id '{task.id}' is in '{first_split}' and in '{split}'",
                where,
                fix="write the split's name into the id: draws are keyed by the id",
            )
            if disjoint == "content":
                first_split = split_of_content.setdefault(fingerprint(task.payload), split)
                require(
                    first_split == split,
                    f"'{task.id}' is the same problem as a task of '{first_split}'",
                    where,
                    fix=_BY_HASH,
                )
        repeated = [task_id for task_id, count in Counter(task.id for task in first).items() if count > 1]
        require(not repeated, f"the id {repeated[:1]} is twice in '{split}'", where, fix="unique ids")
        tasks_of_splits[split] = first
    return tasks_of_splits


def warn_of_shared_problems(
    env: Any, name: str, tasks_of_splits: Mapping[str, Sequence[Task]], team: Players
) -> None:
    """Warn where a later split has problems of the first one under other ids.

    A problem is the payload, the answer, and what the first roles see. It is left out where the seed of
    `reset` decides what they see (the ids key it), or where another task of its split looks alike.

    Raises:
        ConformanceError: `reset` or `observe` raised.
    """
    (train, first), *others = tasks_of_splits.items()
    of_train = [(task, *_problem(env, name, task, team)) for task in first]
    problems = {problem: task for task, problem, _ in of_train}
    if len({seen for _, _, seen in of_train if seen}) < len(first):
        return
    for split, tasks in others:
        same = [(task, problems.get(_problem(env, name, task, team)[0])) for task in tasks]
        shared = [(task, other) for task, other in same if other is not None]
        if shared:
            task, other = shared[0]
            warn(
                f"'{task.id}' is the problem of '{other.id}': {len(shared)} of {len(tasks)} tasks of "
                f"'{split}' are in '{train}' under another id, so a score on '{split}' measures memory",
                f"{name}.tasks",
                fix=f"{_BY_HASH}; where it is meant: check_environment(..., disjoint='id')",
            )


def _problem(env: Any, name: str, task: Task, team: Players) -> tuple[str, str]:
    """What is equal for two tasks with one problem, and what is seen first: empty where the seed decides."""
    seen = []
    for seed in (1, 2):
        with guarded(f"{name}.reset"):
            pending = initial_stage(env, env.reset(task, seed), team)
        roles = pending.roles if pending else ()
        with guarded(f"{name}.observe"):
            seen.append(fingerprint([env.observe(pending.state, role) for role in roles] if pending else ()))
    shown = seen[0] if seen[0] == seen[1] else ""
    return fingerprint((task.payload, task.answer, shown)), shown
