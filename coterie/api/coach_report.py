"""The report on a run's coach: agreement with the verifier, bias, drift, cost, missing scores, re-asks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from coterie.api.coach_calls import CoachedAction, actions_of, calls_of, missing_kinds, spent_in
from coterie.api.coach_statistics import (
    AGREEMENT,
    DRIFT_STEPS,
    LEAST_ACTIONS,
    Effects,
    ScoredActions,
    correlation_interval,
    effects,
    rank_correlation,
    uncorrelated,
)
from coterie.api.rollouts import read_rollouts
from coterie.core.errors import RunFolderError, UserError, did_you_mean
from coterie.core.storage.run_folder import RunFolder
from coterie.recipes import read_yaml

MISSING = 0.05
"""A larger share of missing scores is warned about."""
LEAST_TASKS = 5
"""Fewest tasks for which a rank correlation has an interval."""


@dataclass(frozen=True, slots=True)
class CoachReport:
    """What a run's rollouts tell about its coach."""

    source: str
    """Name of the reward source in the configuration."""
    verified: str
    """The component that is taken for verified quality; empty: none."""
    chosen_by: str
    """`--quality`, `rewards.<name>.quality`, or that it is the environment's only one; where there is none,
    why."""
    steps: int
    actions: int
    """Actions that the coach was asked about."""
    missing: int
    missing_reasons: dict[str, dict[str, Any]]
    """By what kept scores away: `scores`, how many, and `example`, the reason of the first."""
    agreement: dict[str, Any]
    """`quality` and `outcome`: rank correlation, interval, pairs, and why there is none; and by role."""
    means: dict[str, float]
    """Mean score by role, unconditioned."""
    effects: Effects | None
    """At equal quality; None without a verified quality of single actions."""
    cost: dict[str, Any]
    """Questions and answers (`calls_of`), and `spent`: what remote models have spent."""
    versions: dict[str, int]
    """By version of the model: the first step that it scored."""
    warnings: list[str] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)
    """What the report can't tell, and why."""

    def as_dict(self) -> dict[str, Any]:
        """The JSON of `coterie coach --json`."""
        measured = self.effects
        return {
            "source": self.source,
            "verified": self.verified or None,
            "verified_by": self.chosen_by,
            "steps": self.steps,
            "actions": self.actions,
            "missing": self.missing,
            "missing_share": self.missing / self.actions if self.actions else None,
            "missing_reasons": self.missing_reasons,
            "agreement": self.agreement,
            "mean_score": self.means,
            "bias": None
            if measured is None
            else {
                "roles": {role: e.as_dict() for role, e in measured.roles.items()},
                "task_types": {kind: e.as_dict() for kind, e in measured.kinds.items()},
            },
            "drift_in_50_steps": None
            if measured is None or measured.drift is None
            else measured.drift.as_dict(),
            "cost": self.cost,
            "versions": self.versions,
            "warnings": self.warnings,
            "limits": self.limits,
        }


def coach_report(path: Path, source: str | None = None, quality: str | None = None) -> CoachReport:
    """The report on a coach of a run, from its rollouts.

    Args:
        path: the run's folder.
        source: name of the reward source; default: the only one of type coach.
        quality: the component that verifies single actions; default: the coach's setting `quality`, or the
            environment's only component that scores roles and not the team.

    Raises:
        RunFolderError: no run, or no recorded rollouts.
        UserError: the run has no such coach or component.
    """
    folder = RunFolder.open(path)
    config = read_yaml(folder.config)
    name, table = _source(config, source)
    component, scale = str(table.get("component", "process")), float(table.get("scale", 1.0))
    files = folder.rollout_files()
    if not files:
        raise RunFolderError(
            f"{path} has no rollouts", why="the report reads them", fix="set schedule.record_every"
        )
    actions = [action for file in files for action in actions_of(read_rollouts(file), component, scale)]
    seen = {other for action in actions for other in action.others}
    verified, chosen_by = _verified(config, name, seen, quality)
    for action in actions:
        action.quality = action.others.get(verified)
    cost = {**calls_of(actions, table.get("per") == "trajectory"), "spent": spent_in(folder)}
    report = _report(name, (verified, chosen_by), actions, cost, len(files))
    report.limits.extend(_not_counted(config))
    return report


def coaches(config: Mapping[str, Any]) -> list[str]:
    """The names of the reward sources of type coach in a run's configuration."""
    return [
        name
        for name, table in (config.get("rewards") or {}).items()
        if isinstance(table, Mapping) and table.get("type", name) == "coach"
    ]


def _source(config: Mapping[str, Any], source: str | None) -> tuple[str, Mapping[str, Any]]:
    names = coaches(config)
    if source is not None and source not in names:
        raise UserError(f"no coach is called '{source}'", path="--source", fix=did_you_mean(source, names))
    if not names:
        raise UserError("this run has no coach", fix="add one: rewards: {coach: {type: coach, model: ...}}")
    if source is None and len(names) > 1:
        raise UserError(f"this run has {len(names)} coaches", fix=f"--source {' or '.join(names)}")
    name = source or names[0]
    return name, config["rewards"][name]


def _verified(
    config: Mapping[str, Any], name: str, seen: Collection[str], option: str | None
) -> tuple[str, str]:
    """The component of verified quality (empty: none), and what says so.

    Args:
        name: of the coach.
        seen: components of single actions; the team's as `team.<component>`.

    Raises:
        UserError: the component that is named is a coach's, or no action has it; several could be meant.
    """
    rewards = {key: table or {} for key, table in config["rewards"].items()}
    unverified = {str(rewards[key].get("component", "process")) for key in coaches(config)}
    single = sorted(other for other in seen if not other.startswith("team.") and other not in unverified)
    if wanted := option or rewards[name].get("quality"):
        path = "--quality" if option else f"rewards.{name}.quality"
        return _named(str(wanted), path, single, unverified, team=f"team.{wanted}" in seen), path
    return _of_environment(rewards, single)


def _named(wanted: str, path: str, single: list[str], unverified: Collection[str], team: bool) -> str:
    """The component that a setting names, which must score single actions and be no coach's.

    Args:
        team: whether the team has it.
    """
    if wanted in unverified:
        what, why = f"'{wanted}' can't verify the coach", "it is a coach's own score"
        raise UserError(what, path=path, why=why, fix=did_you_mean("", single))
    if wanted not in single:
        what, why = f"no action has a score '{wanted}'", "only the team has it, and no single role"
        raise UserError(what, path=path, why=why if team else "", fix=did_you_mean(wanted, single))
    return wanted


def _of_environment(rewards: Mapping[str, Any], single: Collection[str]) -> tuple[str, str]:
    """The environment's only component that scores single actions.

    Another source's may be as unverified as the coach's. A function's components have names in the
    configuration; those of another plugin are not known here.
    """
    types = {key: table.get("type", key) for key, table in rewards.items()}
    others = {key for key, kind in types.items() if kind not in ("coach", "environment")}
    known = {part for key in others for part in (rewards[key].get("components") or (key,))}
    unknown = sorted(key for key in others if types[key] != "function")
    left = [part for part in single if part not in known]
    if not left:
        return "", "no component of the environment scores single actions"
    if unknown:
        may_be = f"{' or '.join(left)} may be of rewards.{unknown[0]}"
        return "", f"{may_be}: name it by --quality if it is verified"
    if len(left) > 1:
        what = f"several components score single actions: {', '.join(left)}"
        raise UserError(what, path="--quality", fix="name the one that is verified")
    return left[0], "the environment's only score of single actions"


def _not_counted(config: Mapping[str, Any]) -> Iterator[str]:
    """What was asked and stands in no rollouts."""
    schedule = config.get("schedule") or {}
    if schedule.get("evaluate_every", 0):
        yield "questions in evaluations are not counted; what remote models have spent contains them"
    if schedule.get("record_every", 1) > 1:
        yield f"one step in {schedule['record_every']} is recorded (schedule.record_every), and counted"


def _report(
    name: str, verified: tuple[str, str], actions: list[CoachedAction], cost: dict[str, Any], steps: int
) -> CoachReport:
    scored = [action for action in actions if action.score is not None]
    columns = _columns(scored)
    measured = effects(columns) if verified[0] else None
    versions: dict[str, int] = {}
    for action in scored:
        if action.version and action.version != "version unknown":
            versions.setdefault(action.version, action.step)
    report = CoachReport(
        source=name,
        verified=verified[0],
        chosen_by=verified[1],
        steps=steps,
        actions=len(actions),
        missing=len(actions) - len(scored),
        missing_reasons=missing_kinds(actions),
        agreement=_agreement(scored, columns),
        means={
            str(role): float(columns.score[columns.role == role].mean()) for role in np.unique(columns.role)
        },
        effects=measured,
        cost=cost,
        versions=versions,
    )
    report.warnings.extend(_warnings(report))
    report.limits.extend(_limits(report, bool(cost["spent"])))
    return report


def _columns(scored: list[CoachedAction]) -> ScoredActions:
    return ScoredActions(
        score=np.array([action.score for action in scored], dtype=np.float64),
        quality=np.array(
            [np.nan if action.quality is None else action.quality for action in scored], dtype=np.float64
        ),
        role=np.array([action.role for action in scored], dtype=np.str_),
        kind=np.array([action.stratum for action in scored], dtype=np.str_),
        step=np.array([action.step for action in scored], dtype=np.int64),
        task=np.array([action.task for action in scored], dtype=np.str_),
    )


def _agreement(scored: list[CoachedAction], columns: ScoredActions) -> dict[str, Any]:
    """Rank correlations: of scores with verified quality, and of each role's with the episode's success."""
    success = np.array(
        [np.nan if action.success is None else action.success for action in scored], dtype=np.float64
    )
    table: dict[str, Any] = {}
    for name, other in (("quality", columns.quality), ("outcome", success)):
        known = np.isfinite(other)
        if not known.any():
            table[name] = None
            continue
        table[name] = _correlation(columns, other, known, name) | {
            "roles": {
                str(role): _correlation(columns, other, known & (columns.role == role), name)
                for role in np.unique(columns.role)
            }
        }
    return table


def _correlation(columns: ScoredActions, other: Any, chosen: Any, name: str) -> dict[str, Any]:
    scores, others = columns.score[chosen], other[chosen]
    rho = rank_correlation(scores, others)
    tasks = len(np.unique(columns.task[chosen]))
    side = "verified qualities" if name == "quality" else "outcomes"
    return {
        "rho": rho,
        "ci95": list(correlation_interval(rho, tasks)),
        "n": int(chosen.sum()),
        "tasks": tasks,
        "why": uncorrelated(scores, others, ("scores", side)) or None,
    }


def _warnings(report: CoachReport) -> list[str]:
    warnings = []
    measured = report.effects
    if measured is not None:
        for kind, names, table in (
            ("role", measured.biased_roles, measured.roles),
            ("task type", measured.biased_kinds, measured.kinds),
        ):
            warnings += [
                f"the coach scores {kind} '{name}' {abs(table[name].value):.1f} points "
                f"{'higher' if table[name].value > 0 else 'lower'} than the others at equal quality"
                for name in names
            ]
        if measured.drifts and measured.drift is not None:
            warnings.append(
                f"the coach's scores drift by {measured.drift.value:+.1f} points in {DRIFT_STEPS} steps at "
                "equal quality"
            )
    agreement = report.agreement["quality"] or report.agreement["outcome"]
    if agreement is not None and agreement["ci95"][1] < AGREEMENT:
        warnings.append(f"the coach hardly agrees with the verifier: rank correlation {agreement['rho']:.2f}")
    share = report.missing / report.actions if report.actions else 0.0
    if share > MISSING:
        kinds = ", ".join(f"{entry['scores']:,} {kind}" for kind, entry in report.missing_reasons.items())
        warnings.append(f"{share:.0%} of the scores are missing: {kinds}")
    if "cut by max_tokens" in report.missing_reasons:
        warnings.append(f"answers were cut by rewards.{report.source}.max_tokens: raise it")
    if len(report.versions) > 1:
        changes = ", ".join(f"{version} from step {step}" for version, step in report.versions.items())
        warnings.append(f"the coach's model changed: {changes}")
    return warnings


def _limits(report: CoachReport, spent: bool) -> list[str]:
    limits = []
    measured = report.effects
    if not report.verified:
        limits.append(
            f"no verified quality of single actions ({report.chosen_by}): the scores are compared with the "
            "episode's outcome alone, which tells neither whether a role is favoured nor whether the coach "
            "or the team changes"
        )
    elif measured is None:
        limits.append(f"bias and drift need {LEAST_ACTIONS} actions that are scored and verified")
    else:
        limits += _unknown_effects(measured)
    limits += [text for name in ("quality", "outcome") for text in _unknown_agreement(report, name)]
    if not spent:
        limits.append("no record of tokens and money: the coach is no remote model, or asked for nothing")
    return limits


def _unknown_effects(measured: Effects) -> Iterator[str]:
    if measured.drift is None:
        yield "all rollouts are of one step, so there is no drift to see"
    if not measured.roles:
        yield "bias: there is one role, and nothing to compare it with"
    estimates = [*measured.roles.values(), *measured.kinds.values(), *filter(None, [measured.drift])]
    if any(math.isnan(estimate.error) for estimate in estimates):
        yield "some effects have no interval: the actions are of one task, or too few, or don't vary"


def _unknown_agreement(report: CoachReport, name: str) -> Iterator[str]:
    """Why a rank correlation is not there: of all actions, or of single roles."""
    entry = report.agreement[name]
    what = "the outcome" if name == "outcome" else f"'{report.verified}'"
    if entry is None:
        if name == "outcome":
            yield "agreement with the outcome: no scored action has one episode with an outcome"
        elif report.verified:
            yield f"agreement with {what}: it is missing for every scored action"
        return
    if entry["why"]:
        yield f"agreement with {what}: {entry['why']}"
        return
    if entry["tasks"] < LEAST_TASKS:
        yield f"agreement with {what} has no interval: {entry['tasks']} tasks, {LEAST_TASKS} are needed"
    reasons: dict[str, list[str]] = {}
    for role, part in entry["roles"].items():
        if part["why"]:
            reasons.setdefault(part["why"], []).append(role)
    for why, roles in reasons.items():
        yield f"agreement with {what} of {', '.join(roles)}: {why}"
