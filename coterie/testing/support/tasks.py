"""The tasks of an environment's splits: values with unique ids, and problems that are in one split only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.core.errors import UserError
from coterie.core.types import Task
from coterie.testing.support.environment_members import check_task
from coterie.testing.support.episodes import Players, initial_stage
from coterie.testing.support.failure import ConformanceError, guarded, require, warn
from coterie.testing.support.opening import SOURCE_FIX
from coterie.testing.support.promises import promise
from coterie.testing.support.values import fingerprint

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
