"""The table `evaluate`: the sets that training is evaluated on, and how they are played.

A set is the split `val` of the run's environment with other values in some of its settings, so that every
environment has sets without code of its own, as it has levels (`compose/curriculum.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, overload

from pydantic import Field

from coterie.compose.builder import ComponentBuilder
from coterie.compose.curriculum import check_same, taken, with_shared
from coterie.compose.tables import CURRICULUM, model_of
from coterie.core.config import RunConfig, Strict
from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins import Table
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import Environment, Sampler, TaskSource
from coterie.core.rollout.side import EvaluationSet
from coterie.core.training.curriculum import LevelTasks
from coterie.core.types import Task
from coterie.core.types.splits import Split
from coterie.discovery.validation import validate

PATH = "evaluate"
ONLY = "val"
"""The name in jobs of the only set of a run that names none."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


class PlaySettings(Strict):
    """How tasks are played, in the table `evaluate` and in a set's."""

    samples: int | None = Field(None, ge=1, description="Episodes of each task.")
    sampling: Table = Field(
        default_factory=dict, description="Over `sampler.sampling` and `sampler.roles`, such as temperature."
    )


class EvaluationSetConfig(PlaySettings):
    """A set in `evaluate.sets`, by its name. What it leaves out is as in `evaluate`."""

    env: Table = Field(
        default_factory=dict, description="Settings of the environment that differ, each of them whole."
    )
    tasks: int | None = Field(None, ge=1, description="Default: schedule.evaluate_tasks.")


class EvaluateConfig(PlaySettings):
    """The table `evaluate`."""

    sets: dict[str, EvaluationSetConfig | None] = Field(
        default_factory=dict,
        description="By name; `null` removes one. Default: the split `val`, which has no name.",
    )
    best: str | None = Field(None, description="The set that decides which checkpoint is the best.")

    @property
    def named(self) -> dict[str, EvaluationSetConfig]:
        """The sets with a name, the one that decides the best first."""
        sets = {name: each for name, each in self.sets.items() if each is not None}
        return sets if self.best is None else {self.best: sets[self.best], **sets}


@dataclass(frozen=True, slots=True)
class FirstTasks(Sequence[Task]):
    """The first tasks of a source, each made when it is asked for."""

    source: TaskSource
    most: int

    def __len__(self) -> int:
        return min(self.most, len(self.source))

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...

    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return [self[at] for at in range(len(self))[index]]
        return self.source[range(len(self))[index]]


def first_tasks(
    environment: Environment, split: Split, most: int, seed: int, *, name: str = ""
) -> Sequence[Task]:
    """The first tasks of an environment's split.

    Args:
        name: of a set. Its tasks have ids of the set, since draws are keyed by them.

    Raises:
        ConfigError: there are none.
    """
    with plugin_call(environment, "tasks"):
        source = environment.tasks(split, seed)
    if len(source) == 0:
        raise ConfigError(f"the {split} split has no tasks", path=f"{PATH}.sets.{name}" if name else "env")
    return FirstTasks(LevelTasks(source, f"@{name}") if name else source, most)


def make_sets(builder: ComponentBuilder, target: Environment, sampler: Sampler) -> dict[str, EvaluationSet]:
    """The sets of a run by the name in jobs, the one that decides the best checkpoint first.

    Raises:
        ConfigError: an unknown or a wrong setting, no set, two equal sets, a `best` that names none or is
            missing where there are several, an environment with other roles, components or weights.
    """
    run, path = builder.run, f"{PATH}.sets"
    config = read(run)
    samples, most = config.samples or 1, run.schedule.evaluate_tasks
    common = _with_sampling(builder, sampler, config.sampling, {}, f"{PATH}.sampling")
    if not config.sets:
        tasks = partial(first_tasks, target, "val", most)
        only = EvaluationSet(name="", environment=target, sampler=common, tasks=tasks, samples=samples)
        return {ONLY: only}
    sets = {}
    for name, given in config.named.items():
        environment = _environment(builder, target, given.env, f"{path}.{name}.env") if given.env else target
        sampling = f"{path}.{name}.sampling"
        changed = _with_sampling(builder, sampler, given.sampling, config.sampling, sampling)
        sets[name] = EvaluationSet(
            name=name,
            environment=environment,
            sampler=changed if given.sampling else common,
            tasks=partial(first_tasks, environment, "val", given.tasks or most, name=name),
            samples=given.samples or samples,
        )
    return sets


def read(run: RunConfig) -> EvaluateConfig:
    """The table `evaluate`, checked as far as no plugin is asked.

    Raises:
        ConfigError: as of `make_sets`.
    """
    table = run.evaluate or {}
    if isinstance(table.get("sets"), (list, tuple)):
        fix = "evaluate.sets: {aime: {env: {val: aime24}}, amc: {env: {val: amc}}}"
        raise ConfigError("sets are a table by name", path=f"{PATH}.sets", why="this is a list", fix=fix)
    config: EvaluateConfig = validate(EvaluateConfig, table, PATH)
    names = [name for name, each in config.sets.items() if each is not None]
    if "sets" in table and not names:
        fix = "name one, or leave `sets` out: then the environment's split val is evaluated"
        raise ConfigError("there is no set", path=f"{PATH}.sets", fix=fix)
    if config.best is not None and config.best not in names:
        what = f"there is no set '{config.best}'" if names else "the run names no sets"
        fix = did_you_mean(config.best, names) if names else "remove it"
        raise ConfigError(what, path=f"{PATH}.best", fix=fix)
    if config.best is None and len(names) > 1:
        why = f"it could be {' or '.join(names)}"
        fix = f"set {PATH}.best={names[0]}"
        raise ConfigError("which set decides the best checkpoint?", path=f"{PATH}.best", why=why, fix=fix)
    if wrong := [name for name in names if not NAME.fullmatch(name)]:
        why = "metrics and files have it, and no part of them is a dot, a slash or a space"
        fix = "letters, digits, _ and -, a letter first"
        raise ConfigError(f"'{wrong[0]}' is no name", path=f"{PATH}.sets.{wrong[0]}", why=why, fix=fix)
    first: dict[str, str] = {}
    for name, each in config.named.items():
        other = first.setdefault(repr(each), name)
        if other != name:
            why = f"it is '{other}' again"
            raise ConfigError("the set is there twice", path=f"{PATH}.sets.{name}", why=why)
    return config


def _environment(builder: ComponentBuilder, target: Environment, given: Table, path: str) -> Environment:
    """The environment with these settings in place of the run's."""
    _, env = taken(builder.run.env)
    for key, why in (
        ("type", "a set is of the run's environment"),
        (CURRICULUM, "a set has the values that are played"),
    ):
        if key in given:
            raise ConfigError(f"a set can't have `{key}`", path=f"{path}.{key}", why=why, fix="remove it")
    environment: Environment = builder.make("environment", {**with_shared(env, target), **given}, path)
    check_same(environment, target, path)
    return environment


def _with_sampling(
    builder: ComponentBuilder, sampler: Sampler, given: Table, base: Table, path: str
) -> Sampler:
    """The sampler with these sampling settings over its own, of all roles and of single ones.

    Args:
        base: the settings of `evaluate.sampling`, below `given`.
    """
    if not given:
        return sampler
    table = builder.run.sampler
    fields = getattr(getattr(type(sampler), "Config", None), "model_fields", {})
    if "sampling" not in fields:
        why = f"sampler '{table['type']}' has no setting `sampling`"
        raise ConfigError("nothing reads this", path=path, why=why, fix="remove it")
    model = model_of(fields["sampling"].annotation)
    if model is not None:
        validate(model, given, path)
    over = {**base, **given}
    changed: dict[str, Any] = {"sampling": {**(table.get("sampling") or {}), **over}}
    if table.get("roles"):
        changed["roles"] = {role: {**(of_role or {}), **over} for role, of_role in table["roles"].items()}
    made: Sampler = builder.make("sampler", {**table, **changed}, "sampler")
    return made
