"""The tasks of the splits that a run will play, asked for before it begins."""

from __future__ import annotations

from collections.abc import Collection, Sized
from inspect import isawaitable
from typing import Any

from coterie.compose.evaluation_sets import check_apart, leave_out, sources_of
from coterie.compose.strata import check_strata
from coterie.core.config import RunConfig
from coterie.core.errors import ConfigError
from coterie.core.plugins.origin import origin_of, plugin_call
from coterie.core.protocols import Environment
from coterie.core.rollout.contracts import refuse
from coterie.core.rollout.side import LocalRolloutSide
from coterie.core.training.curriculum import Curriculum, LevelTasks, trained_on
from coterie.core.types import Task
from coterie.core.types.splits import Split


def check_tasks(
    config: RunConfig, side: LocalRolloutSide, curriculum: Curriculum | None, splits: Collection[Split]
) -> None:
    """Ask for the tasks of these splits: those of `train` of every level of a curriculum, those of `val` of
    the sets that the run names."""
    environment, seed, sets = side.environment, config.seed, side.sets
    leave_out([environment, *side.levels], sets, environment, seed)
    for split in splits:
        played: list[tuple[Environment, Any]]
        if split == "val" and (named := sources_of(sets, seed)):
            for owner, tasks, path in named:
                _check_source(owner, tasks, split, path)
            continue
        with plugin_call(environment, "tasks"):
            if split != "train":
                played = [(environment, environment.tasks(split, seed))]
            else:
                played = [*trained_on(environment, curriculum, seed)]
        for owner, tasks in played:
            _check_source(owner, tasks.source if isinstance(tasks, LevelTasks) else tasks, split)
            if split == "train":
                check_strata(owner, tasks, config.schedule.stratify)
                check_apart(owner, tasks, sets, seed)


def _check_source(environment: Environment, tasks: Any, split: Split, path: str = "env") -> None:
    """Refuse what is no source of tasks. One that makes its tasks when it is asked shows its first two."""
    if isawaitable(tasks) or not isinstance(tasks, Sized):
        fix = (
            "a list of coterie.Task, or an object with `__len__` and `__getitem__`; `tasks` isn't `async def`"
        )
        refuse(environment, "tasks", tasks, fix)
    source: Any = tasks
    if len(source) == 0:
        origin = origin_of(environment)
        raise ConfigError(f"the {split} split has no tasks", path=path, why=f"{origin}: tasks returned none")
    with plugin_call(environment, "tasks"):
        shown = source if isinstance(source, (list, tuple)) else [source[at] for at in range(len(source))[:2]]
    ids: set[str] = set()
    for task in shown:
        if not isinstance(task, Task):
            refuse(environment, "tasks", task, "every task is a coterie.Task")
        if task.id in ids:
            refuse(
                environment, "tasks", task.id, f"give each task of '{split}' another id: this one is twice"
            )
        ids.add(task.id)
