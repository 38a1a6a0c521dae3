"""The tasks of the splits that a run will play, asked for before it begins."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sized
from inspect import isawaitable
from typing import Any

from coterie.compose.evaluation_sets import PATH, FirstTasks
from coterie.compose.strata import check_strata
from coterie.core.config import RunConfig
from coterie.core.errors import ConfigError
from coterie.core.plugins.origin import origin_of, plugin_call
from coterie.core.protocols import Environment, TaskSource
from coterie.core.rollout.contracts import refuse
from coterie.core.rollout.side import EvaluationSet, LocalRolloutSide
from coterie.core.training.curriculum import Curriculum, LevelTasks, trained_on
from coterie.core.types import Task
from coterie.core.types.splits import Split
from coterie.discovery.members import FingerprintsTasks, LeavesOut


def check_tasks(
    config: RunConfig, side: LocalRolloutSide, curriculum: Curriculum | None, splits: Collection[Split]
) -> None:
    """Ask for the tasks of these splits: those of `train` of every level of a curriculum, those of `val` of
    the sets that the run names."""
    environment, seed, sets = side.environment, config.seed, side.sets
    others = [each for each in sets.values() if each.environment is not environment]

    def evaluated() -> list[Task]:
        return [task for each in others for task in each.tasks(seed)]

    for trained in (environment, *side.levels) if others else ():
        if isinstance(trained, LeavesOut):  # its own val it leaves out itself
            with plugin_call(trained, "leave_out"):
                trained.leave_out(evaluated)
    for split in splits:
        played: list[tuple[Environment, Any]]
        if split == "val" and (named := _sources(sets, seed)):
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
                _check_apart(owner, tasks, sets, seed)


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


def _sources(sets: Mapping[str, EvaluationSet], seed: int) -> list[tuple[Environment, Any, str]]:
    """(environment, what it gives as its tasks, the set's path) of each set with a name."""
    sources = []
    for name, each in sets.items():
        if each.name:
            with plugin_call(each.environment, "tasks"):
                sources.append((each.environment, each.environment.tasks("val", seed), f"{PATH}.sets.{name}"))
    return sources


def _check_apart(
    environment: Environment, tasks: TaskSource, sets: Mapping[str, EvaluationSet], seed: int
) -> None:
    """Refuse a list of train tasks that has some of a set's, where the environment can't leave them out.

    The splits of tasks that are made one by one are the environment's own business.

    Raises:
        ConfigError: with the first task that is in both.
    """
    if isinstance(environment, LeavesOut) or not isinstance(environment, FingerprintsTasks):
        return
    for each in sets.values():
        evaluated = each.tasks(seed) if each.name and each.environment is not environment else ()
        source = evaluated.source if isinstance(evaluated, FirstTasks) else ()
        listed = source.source if isinstance(source, LevelTasks) else source
        if not isinstance(tasks, (list, tuple)) or not isinstance(listed, (list, tuple)):
            continue
        with plugin_call(environment, "fingerprints"):
            trained = {environment.fingerprints(task)["content"]: task.id for task in tasks}
            shared = [(trained.get(environment.fingerprints(task)["content"]), task.id) for task in evaluated]
        pairs = [(ours, theirs) for ours, theirs in shared if ours is not None]
        if pairs:
            raise ConfigError(
                f"{len(pairs)} of {len(shared)} tasks are in train too",
                path=f"{PATH}.sets.{each.name}",
                why=f"'{pairs[0][1]}' is '{pairs[0][0]}'",
                fix="give the set other records than train",
            )
