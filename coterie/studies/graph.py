"""From a study, columns and seeds to jobs: which run depends on which, and which cell of the table it fills.

A job's id is a digest of everything that decides its result (the whole resolved configuration, the ids of the
jobs that it builds on, what is evaluated), so that rows, and studies that share a folder, share their runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from coterie.core.config import Resolved, load
from coterie.core.errors import ConfigError, did_you_mean
from coterie.studies.columns import ALONE, BASE, BY_ROLE, Column
from coterie.studies.study import Method, Study

CHECKPOINT_EVERY = 10
"""Steps, where a recipe keeps no checkpoints on the way: a killed run has to go on from somewhere."""
BASE_SEED = 0
"""Of the weights that all rows and seeds start from: they stand for a pretrained model, and that is one."""
EVALUATION_COST, BASE_COST = 20, 50_000
"""In generated tokens, a task of an evaluation and a common start: roughly, to order the jobs by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One process: make a common start, train, or evaluate."""

    id: str
    kind: Literal["base", "train", "evaluate"]
    column: str
    seed: int
    what: str
    """The form or row, for people."""
    recipe: str = ""
    scale: str | None = None
    overrides: tuple[str, ...] = ()
    base: str | None = None
    """The job whose exported weights stand for `base-<id>` in the overrides."""
    policy: str = ""
    """Of a base: what is exported."""
    merge: bool = False
    run: str | None = None
    """Of an evaluation: the training job; None: as the recipe starts."""
    swap: tuple[str, str] | None = None
    policies: Mapping[str, str] = field(default_factory=dict)
    """Of an evaluation: role -> the training job whose policy plays it."""
    tasks: int = 0
    tokens: int = 0
    """The budget of a training."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Jobs that come before it."""
        return tuple(filter(None, (self.base, self.run, *self.policies.values())))

    @property
    def label(self) -> str:
        return f"{self.column} seed {self.seed}: {self.kind} {self.what}".rstrip()

    @property
    def cost(self) -> float:
        """In generated tokens, roughly."""
        if self.kind == "train":
            return self.tokens
        return BASE_COST if self.kind == "base" else self.tasks * EVALUATION_COST


@dataclass(frozen=True, slots=True)
class Cell:
    """Where the values of one row and seed come from."""

    evaluation: str
    """The job."""
    changed: bool
    """The changed team's values, not the base team's."""
    trains: tuple[str, ...]
    """Training jobs whose tokens went into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that one call has to do."""

    name: str
    study: Study
    scale: str
    seeds: tuple[int, ...]
    columns: tuple[Column, ...]
    budgets: Mapping[str, tuple[int, int]]
    """column -> (tokens, tasks)."""
    rows: Mapping[str, tuple[Method, ...]]
    jobs: Mapping[str, Job]
    cells: Mapping[tuple[str, str, int], Cell]
    """By (column, row, seed)."""


def plan(
    name: str,
    study: Study,
    columns: Sequence[Column],
    *,
    scale: str,
    seeds: int,
    first_seed: int = 0,
    tokens: int | None = None,
    tasks: int | None = None,
) -> Plan:
    """Everything, resolved and checked, before the first process starts.

    Args:
        seeds: how many, from `first_seed`.
        tokens, tasks: in place of the columns' budgets.

    Raises:
        ConfigError: the study refuses the scale, a column lacks a form or the scale, or a configuration is
            wrong.
    """
    if scale in study.refused:
        why, fix = study.refused[scale]
        raise ConfigError(f"{name} can't be run at scale '{scale}'", path="--scale", why=why, fix=fix)
    jobs: dict[str, Job] = {}
    cells: dict[tuple[str, str, int], Cell] = {}
    tables: dict[tuple[str, str], Mapping[str, Any]] = {}
    rows = {column.name: tuple(study.rows(column)) for column in columns}
    budgets = {}
    for column in columns:
        budget = column.scale(scale)
        budgets[column.name] = (tokens or budget.tokens, tasks or budget.tasks)
        for seed in range(first_seed, first_seed + seeds):
            maker = _Maker(study, column, scale, seed, *budgets[column.name], jobs, tables)
            for row in rows[column.name]:
                cells[column.name, row.id, seed] = maker.cell(row)
    return Plan(
        name=name,
        study=study,
        scale=scale,
        seeds=tuple(range(first_seed, first_seed + seeds)),
        columns=tuple(columns),
        budgets=budgets,
        rows=rows,
        jobs=jobs,
        cells=cells,
    )


@dataclass(slots=True)
class _Maker:
    """Makes the jobs of one column and seed; a job that is there already is shared."""

    study: Study
    column: Column
    scale: str
    seed: int
    tokens: int
    tasks: int
    jobs: dict[str, Job]
    tables: dict[tuple[str, str], Mapping[str, Any]]
    """(column, form) -> its configuration before anything of ours: read once, not for each seed."""

    def cell(self, row: Method) -> Cell:
        if row.parts:
            parts = {role: self.train(form) for role, form in row.parts.items()}
            return self.evaluation(row, None, None, parts)
        run = self.train(row.form) if row.trained else None
        return self.evaluation(row, run, self._swap(row) if row.swapped else None, {})

    def evaluation(
        self, row: Method, run: str | None, swap: tuple[str, str] | None, parts: Mapping[str, str]
    ) -> Cell:
        start: dict[str, Any] = {}
        told: Any = run
        if run is None:
            # A budget that nothing spends: with it, learning rates that decay over the budget are valid.
            start, resolved = self._resolve(row.form, ["schedule.tokens=1"])
            told = resolved.digest()
        _check_roles(self.column, row.form, self._table(row.form), (*(swap or ()), *parts))
        job = self._add(
            {"of": told, "swap": swap, "policies": dict(parts), "tasks": self.tasks},
            kind="evaluate",
            what=row.id,
            run=run,
            swap=swap,
            policies=parts,
            tasks=self.tasks,
            **start,
        )
        return Cell(job, bool(swap or parts), tuple(filter(None, (run, *parts.values()))))

    def train(self, form: str) -> str:
        # Roles that are trained alone share the budget: put together, they have cost what a team costs.
        sharing = len(self.column.roles) if form.startswith(f"{ALONE}.") else 1
        tokens = max(1, self.tokens // sharing)
        budget = [f"schedule.tokens={tokens}", "schedule.steps=null", "schedule.epochs=null"]
        if not self._table(form)["schedule"]["checkpoint_every"]:
            budget.append(f"schedule.checkpoint_every={CHECKPOINT_EVERY}")
        start, resolved = self._resolve(form, budget)
        if resolved.table["schedule"]["stop_after"] is not None:
            raise ConfigError(
                f"the form '{form}' of column '{self.column.name}' ends by the clock",
                path="schedule.stop_after",
                why="rows are compared at equal tokens",
                fix="add schedule.stop_after=null to the form's or the scale's overrides",
            )
        analysis = self.study.analysis
        if analysis is not None and form == self._form_of(analysis.row):
            analysis.needs(resolved.table, form)
        return self._add({"config": resolved.digest()}, kind="train", what=form, tokens=tokens, **start)

    def base(self) -> str:
        """The job that makes the weights that all rows start from."""
        overrides = ["schedule.steps=0", "schedule.epochs=null", "schedule.tokens=1", f"seed={BASE_SEED}"]
        recipe, scale, words, resolved = resolve(self.column, BASE, self.scale, overrides)
        policies = resolved.config.policies
        policy = "shared" if "shared" in policies else next(iter(policies))
        if policy != "shared" and len(policies) > 1:
            raise ConfigError(
                f"the form 'base' of column '{self.column.name}' has no policy 'shared'",
                path=f"{self.column.path}: forms.base",
                why=f"it has {', '.join(policies)}",
                fix="name the one that all rows start from `shared`",
            )
        return self._add(
            {"config": resolved.digest(), "policy": policy},
            kind="base",
            seed=BASE_SEED,
            what="",
            recipe=recipe,
            scale=scale,
            overrides=words,
            policy=policy,
            merge=policies[policy].train == "lora",
        )

    def _resolve(self, form: str, overrides: Sequence[str]) -> tuple[dict[str, Any], Resolved]:
        """What a job of this form is started with, and the configuration that comes of it."""
        base, extra = None, []
        model = self.study.model
        if model is None and self._has_base():
            base = self.base()
            model = f"base-{base}"
        if model is not None:
            for policy in self._table(form)["policies"]:
                extra += [f"policies.{policy}.model={model}", f"policies.{policy}.warm_start=null"]
        recipe, scale, words, resolved = resolve(
            self.column, form, self.scale, [*extra, *overrides, *self._always()]
        )
        return {"recipe": recipe, "scale": scale, "overrides": words, "base": base}, resolved

    def _has_base(self) -> bool:
        if BASE not in self.column.forms:
            return False
        wanted = self.column.scale(self.scale).base
        return self.scale == "cpu" if wanted is None else wanted

    def _table(self, form: str) -> Mapping[str, Any]:
        key = self.column.name, form
        if key not in self.tables:
            self.tables[key] = resolve(self.column, form, self.scale, [])[3].table
        return self.tables[key]

    def _always(self) -> list[str]:
        return [f"seed={self.seed}"]

    def _form_of(self, row: str) -> str:
        return next(one.form for one in self.study.rows(self.column) if one.id == row)

    def _swap(self, row: Method) -> tuple[str, str]:
        if self.column.swap is None:
            raise ConfigError(
                f"column '{self.column.name}' has one role, so that nothing can be swapped",
                path=f"{self.column.path}: roles",
                why=f"row '{row.id}' swaps two",
                fix="leave the column out with --columns",
            )
        return self.column.swap

    def _add(self, decides: Mapping[str, Any], **settings: Any) -> str:
        identity = json.dumps([settings["kind"], decides], sort_keys=True)
        id_ = hashlib.sha256(identity.encode()).hexdigest()[:12]
        job = Job(id=id_, column=self.column.name, **{"seed": self.seed, **settings})
        return self.jobs.setdefault(id_, job).id


def resolve(
    column: Column, form: str, scale: str, overrides: Sequence[str]
) -> tuple[str, str | None, tuple[str, ...], Resolved]:
    """(recipe, its scale if it has one of that name, all overrides, the configuration) of a form.

    Raises:
        ConfigError: no such form, or its recipe, scale or overrides are wrong.
    """
    found = column.form(form)
    words = (*found.overrides, *column.scale(scale).overrides, *overrides)
    try:
        try:
            return found.recipe, scale, words, load(found.recipe, overrides=words, scale=scale)
        except ConfigError as error:
            if error.path != "--scale":
                raise
            return found.recipe, None, words, load(found.recipe, overrides=words)
    except ConfigError as error:
        where = f"{column.path}: forms.{form}"
        inner = f"{error.path}: {error.what}" if error.path else error.what
        raise ConfigError(inner, path=where, why=error.why, fix=error.fix) from None


def check_forms(column: Column) -> None:
    """Resolve every form at every scale.

    Raises:
        ConfigError: the first thing that is wrong.
    """
    for scale in column.scales:
        for form in column.forms:
            table = resolve(column, form, scale, [])[3].table
            if form.partition(".")[0] in BY_ROLE:
                _check_roles(column, form, table, (form.partition(".")[2],))
            elif form in ("shared", "per_role"):
                _check_roles(column, form, table, column.roles)


def _check_roles(column: Column, form: str, table: Mapping[str, Any], roles: Sequence[str]) -> None:
    known = table["team"]["roles"]
    for role in roles:
        if role not in known:
            raise ConfigError(
                f"nobody plays the role '{role}'",
                path=f"{column.path}: forms.{form}",
                why="the column, or a row of the study, names it",
                fix=did_you_mean(role, known),
            )


def priorities(jobs: Mapping[str, Job]) -> dict[str, float]:
    """Cost of the longest chain that begins with each job: the longest goes first."""
    followers: dict[str, list[str]] = {}
    for job in jobs.values():
        for need in job.needs:
            followers.setdefault(need, []).append(job.id)
    found: dict[str, float] = {}

    def length(id_: str) -> float:
        if id_ not in found:
            found[id_] = jobs[id_].cost + max(map(length, followers.get(id_, ())), default=0.0)
        return found[id_]

    return {id_: length(id_) for id_ in jobs}
