"""The graph of jobs of a study: which job depends on which, and which cells of the table it fills.

A job's id is a digest of everything that decides its result: the whole resolved configuration, the ids of the
jobs that it builds on, and what is evaluated. Methods, and studies in one folder, therefore share runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from coterie import ConfigError, Resolved, did_you_mean
from coterie.studies.columns import BASE, SOLO, Column
from coterie.studies.study import Method, Study
from coterie.studies.variants import check_roles, check_test, resolve, what_is_trained

CHECKPOINT_EVERY = 10
"""Steps between checkpoints if the recipe sets none: a killed run resumes from the latest checkpoint."""
BASE_SEED = 0
"""Seed of the common initial weights of all methods and seeds: they stand for one pretrained model."""
EVALUATION_COST, BASE_COST = 20, 50_000
"""Approximate costs, in generated tokens, of one evaluated task and of common initial weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One process: it makes common initial weights, trains, or evaluates."""

    id: str
    kind: Literal["base", "train", "evaluate"]
    column: str
    seed: int
    subject: str
    """The variant (of a training) or the id of the method (of an evaluation), for labels."""
    recipe: str = ""
    overlays: tuple[str, ...] = ()
    scale: str | None = None
    overrides: tuple[str, ...] = ()
    """Of the recipe; of an evaluation with a `run`, of that."""
    base: str | None = None
    """The job whose exported weights replace `base-<id>` in the overrides."""
    policy: str = ""
    """Of a base: the policy that is exported."""
    merge: bool = False
    """Of a base: whether the export merges the adapter into the weights."""
    run: str | None = None
    """Of an evaluation: the training job. None: the recipe's initial weights are evaluated."""
    swap: tuple[str, str] | None = None
    policies: Mapping[str, str] = field(default_factory=dict)
    """Of an evaluation: role -> the training job whose policy plays the role."""
    tasks: int = 0
    tokens: int = 0
    """Of a training: the budget, in generated tokens."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Ids of the jobs that must be done before this one."""
        return tuple(filter(None, (self.base, self.run, *self.policies.values())))

    @property
    def label(self) -> str:
        """Column, seed, kind and subject, for messages and tables."""
        return f"{self.column} seed {self.seed}: {self.kind} {self.subject}".rstrip()

    @property
    def cost(self) -> float:
        """Approximate cost in generated tokens."""
        if self.kind == "train":
            return self.tokens
        return BASE_COST if self.kind == "base" else self.tasks * EVALUATION_COST


@dataclass(frozen=True, slots=True)
class Cell:
    """The jobs behind the values of one method and seed."""

    evaluation: str
    """The evaluation job."""
    changed: bool
    """True: the values are those of the changed team (swapped, or of several runs), not of the base team."""
    trains: tuple[str, ...]
    """Training jobs whose tokens the cell counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """All jobs of one call, and the cells that they fill."""

    name: str
    study: Study
    scale: str
    seeds: tuple[int, ...]
    columns: tuple[Column, ...]
    budgets: Mapping[str, tuple[int, int]]
    """column -> (tokens, tasks)."""
    methods: Mapping[str, tuple[Method, ...]]
    """By column."""
    jobs: Mapping[str, Job]
    cells: Mapping[tuple[str, str, int], Cell]
    """By (column, id of the method, seed)."""
    trained: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """By (column, id of a trained method): what of its policies is trained."""


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
) -> StudyPlan:
    """Resolve and check everything before the first process starts.

    Args:
        seeds: number of seeds, from `first_seed`.
        tokens, tasks: replace the columns' budgets.

    Raises:
        ConfigError: the study refuses the scale or names a method that it lacks, a column lacks a variant or
            the scale, or a configuration is wrong.
    """
    if scale in study.refused:
        why, fix = study.refused[scale]
        raise ConfigError(f"{name} can't be run at scale '{scale}'", path="--scale", why=why, fix=fix)
    jobs: dict[str, Job] = {}
    cells: dict[tuple[str, str, int], Cell] = {}
    tables: dict[tuple[str, str], Mapping[str, Any]] = {}
    trained: dict[tuple[str, str], str] = {}
    methods = {
        column.name: tuple(
            method for method in study.methods(column) if method.scales is None or scale in method.scales
        )
        for column in columns
    }
    budgets = {}
    for column in columns:
        _check_gain_over(name, study, methods[column.name])
        budget = column.scale(scale)
        budgets[column.name] = (tokens or budget.tokens, tasks or budget.tasks)
        for seed in range(first_seed, first_seed + seeds):
            builder = _JobBuilder(study, column, scale, seed, *budgets[column.name], jobs, tables, trained)
            for method in methods[column.name]:
                cells[column.name, method.id, seed] = builder.cell(method)
    return StudyPlan(
        name=name,
        study=study,
        scale=scale,
        seeds=tuple(range(first_seed, first_seed + seeds)),
        columns=tuple(columns),
        budgets=budgets,
        methods=methods,
        jobs=jobs,
        cells=cells,
        trained=trained,
    )


def _check_gain_over(name: str, study: Study, methods: Sequence[Method]) -> None:
    ids = [method.id for method in methods]
    if study.gain_over is not None and study.gain_over not in ids:
        raise ConfigError(
            f"study '{name}' has no method '{study.gain_over}'",
            path="Study.gain_over",
            why="the gain of each row is measured from it",
            fix=did_you_mean(study.gain_over, ids),
        )


@dataclass(slots=True)
class _JobBuilder:
    """Adds the jobs of one column and seed; equal jobs are added once and shared."""

    study: Study
    column: Column
    scale: str
    seed: int
    tokens: int
    tasks: int
    jobs: dict[str, Job]
    tables: dict[tuple[str, str], Mapping[str, Any]]
    """(column, variant) -> its configuration without the study's overrides: read once, not for each seed."""
    trained: dict[tuple[str, str], str]
    """(column, id of a method) -> what is trained."""

    def cell(self, method: Method) -> Cell:
        """Add all jobs of a method."""
        if method.parts:
            parts = {role: self.train(variant, method) for role, variant in method.parts.items()}
            return self.evaluation(method, None, None, parts)
        run = self.train(method.variant, method) if method.trained else None
        return self.evaluation(method, run, self._swap(method) if method.swapped else None, {})

    def evaluation(
        self, method: Method, run: str | None, swap: tuple[str, str] | None, parts: Mapping[str, str]
    ) -> Cell:
        """Add the evaluation of a method."""
        start: dict[str, Any] = {}
        evaluated: Any = run
        if run is None:
            # No step spends this budget: learning rates that decay over the budget need one to be valid.
            start, resolved = self._resolve(method.variant, ["schedule.tokens=1"], tested=True)
            evaluated = resolved.digest()
        else:
            check_test(self.column, method.variant, self.scale)
            start = {"overrides": self.column.test}
        check_roles(self.column, method.variant, self._table(method.variant), (*(swap or ()), *parts))
        # What an untrained team plays is in the digest of its configuration.
        test = {"test": self.column.test} if run is not None and self.column.test else {}
        job = self._add(
            {"of": evaluated, "swap": swap, "policies": dict(parts), "tasks": self.tasks, **test},
            kind="evaluate",
            subject=method.id,
            run=run,
            swap=swap,
            policies=parts,
            tasks=self.tasks,
            **start,
        )
        return Cell(job, bool(swap or parts), tuple(filter(None, (run, *parts.values()))))

    def train(self, variant: str, method: Method) -> str:
        """Add the training run of a variant for a method."""
        # Roles that train alone share the budget, so that the team made of them has cost what a team costs.
        sharing = len(self.column.roles) if variant.startswith(f"{SOLO}.") else 1
        tokens = max(1, self.tokens // sharing)
        budget = [f"schedule.tokens={tokens}", "schedule.steps=null", "schedule.epochs=null"]
        if (schedule := self._table(variant)["schedule"])["checkpoint_every"] in (0, "auto"):
            budget.append(f"schedule.checkpoint_every={CHECKPOINT_EVERY}")
        never = ["schedule.evaluate_every=0"] * (schedule["evaluate_every"] == "auto")  # jobs evaluate
        start, resolved = self._resolve(variant, [*never, *method.overrides, *budget])
        self.trained[self.column.name, method.id] = what_is_trained(resolved.table["policies"])
        if resolved.table["schedule"]["stop_after"] is not None:
            raise ConfigError(
                f"the variant '{variant}' of column '{self.column.name}' ends by the clock",
                path="schedule.stop_after",
                why="methods are compared at equal tokens",
                fix="add schedule.stop_after=null to the variant's or the scale's overrides",
            )
        analysis = self.study.analysis
        if analysis is not None and variant == self._variant_of(analysis.method):
            analysis.needs(resolved.table, variant)
        subject = method.id if method.overrides else variant
        return self._add({"config": resolved.digest()}, kind="train", subject=subject, tokens=tokens, **start)

    def base(self) -> str:
        """Add the job that makes the initial weights of all methods."""
        settings = ["schedule.steps=0", "schedule.epochs=null", "schedule.tokens=1", f"seed={BASE_SEED}"]
        start, resolved = resolve(self.column, BASE, self.scale, settings)
        policies = resolved.config.policies
        policy = "shared" if "shared" in policies else next(iter(policies))
        if policy != "shared" and len(policies) > 1:
            raise ConfigError(
                f"the variant 'base' of column '{self.column.name}' has no policy 'shared'",
                path=f"{self.column.path}: forms.base",
                why=f"it has {', '.join(policies)}",
                fix="name the policy that all methods start from `shared`",
            )
        return self._add(
            {"config": resolved.digest(), "policy": policy},
            kind="base",
            seed=BASE_SEED,
            subject="",
            policy=policy,
            merge=policies[policy].train == "lora",
            **start,
        )

    def _resolve(
        self, variant: str, settings: Sequence[str], tested: bool = False
    ) -> tuple[dict[str, Any], Resolved]:
        """(the fields of a job that starts from this variant, the resolved configuration).

        Args:
            tested: with what the column's test alone reads.
        """
        base, initial = None, []
        model = self.study.model
        if model is None and self._has_base():
            base = self.base()
            model = f"base-{base}"
        if model is not None:
            for policy in self._table(variant)["policies"]:
                initial += [f"policies.{policy}.model={model}", f"policies.{policy}.warm_start=null"]
        start, resolved = resolve(
            self.column, variant, self.scale, [*initial, *settings, f"seed={self.seed}"], tested=tested
        )
        return {**start, "base": base}, resolved

    def _has_base(self) -> bool:
        if BASE not in self.column.variants:
            return False
        wanted = self.column.scale(self.scale).base
        return self.scale == "cpu" if wanted is None else wanted

    def _table(self, variant: str) -> Mapping[str, Any]:
        key = self.column.name, variant
        if key not in self.tables:
            self.tables[key] = resolve(self.column, variant, self.scale, [])[1].table
        return self.tables[key]

    def _variant_of(self, id_: str) -> str:
        return next(method.variant for method in self.study.methods(self.column) if method.id == id_)

    def _swap(self, method: Method) -> tuple[str, str]:
        if self.column.swap is None:
            raise ConfigError(
                f"column '{self.column.name}' has one role, so that nothing can be swapped",
                path=f"{self.column.path}: roles",
                why=f"method '{method.id}' swaps two roles",
                fix="leave the column out with --columns",
            )
        return self.column.swap

    def _add(self, decides: Mapping[str, Any], **settings: Any) -> str:
        identity = json.dumps([settings["kind"], decides], sort_keys=True)
        id_ = hashlib.sha256(identity.encode()).hexdigest()[:12]
        job = Job(id=id_, column=self.column.name, **{"seed": self.seed, **settings})
        return self.jobs.setdefault(id_, job).id


def priorities(jobs: Mapping[str, Job]) -> dict[str, float]:
    """The cost of the longest chain that begins with each job, in generated tokens."""
    followers: dict[str, list[str]] = {}
    for job in jobs.values():
        for need in job.needs:
            followers.setdefault(need, []).append(job.id)
    costs: dict[str, float] = {}

    def cost_of_chain(id_: str) -> float:
        if id_ not in costs:
            costs[id_] = jobs[id_].cost + max(map(cost_of_chain, followers.get(id_, ())), default=0.0)
        return costs[id_]

    return {id_: cost_of_chain(id_) for id_ in jobs}
