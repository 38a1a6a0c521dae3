"""The report on a run's coach: agreement with the verifier, bias, drift, cost, missing scores, re-asks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from coterie.api.coach_statistics import (
    AGREEMENT,
    DRIFT_STEPS,
    LEAST_ACTIONS,
    Effects,
    ScoredActions,
    correlation_interval,
    effects,
    rank_correlation,
)
from coterie.api.rollouts import read_rollouts
from coterie.core.errors import RunFolderError, UserError, did_you_mean
from coterie.core.storage.run_folder import RunFolder
from coterie.recipes import read_yaml

ANSWERS = re.compile(r"\((.*); answers: (\d+)\)\Z")
"""The last line of a coach's comment: the model's version, and the number of answers that the score took."""
MALFORMED = "malformed twice"
"""In the reason of a score that is missing after a second malformed answer."""
MISSING = 0.05
"""A larger share of missing scores is warned about."""


@dataclass(slots=True)
class Action:
    """One action that the coach was asked about."""

    step: int
    task: str
    episode: tuple[str, int, int]
    """Task, epoch and chain."""
    role: str
    stratum: str
    score: float | None
    """0 to 10; None: missing."""
    quality: float | None
    answers: int
    version: str
    success: float | None = None
    """Of the episode."""


@dataclass(frozen=True, slots=True)
class CoachReport:
    """What a run's rollouts tell about its coach."""

    source: str
    """Name of the reward source in the configuration."""
    verified: str
    """The component that is taken for verified quality; empty: none scores single actions."""
    steps: int
    actions: int
    """Actions that the coach was asked about."""
    missing: int
    agreement: dict[str, Any]
    """`quality` and `outcome`: rank correlation, interval, pairs; and by role."""
    means: dict[str, float]
    """Mean score by role, unconditioned."""
    effects: Effects | None
    """At equal quality; None without a verified quality of single actions."""
    cost: dict[str, Any]
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
            "steps": self.steps,
            "actions": self.actions,
            "missing": self.missing,
            "missing_share": self.missing / self.actions if self.actions else None,
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
            only component, besides the coach's, that scores roles and not the team.

    Raises:
        RunFolderError: no run, or no recorded rollouts.
        UserError: the run has no such coach or component.
    """
    folder = RunFolder.open(path)
    config = read_yaml(folder.config)
    name, table = _source(config, source)
    component, scale = str(table.get("component", "process")), float(table.get("scale", 1.0))
    files = sorted(folder.rollouts.glob("step-*.jsonl"))
    if not files:
        raise RunFolderError(
            f"{path} has no rollouts", why="the report reads them", fix="set schedule.record_every"
        )
    quality = quality or table.get("quality")
    verified, actions = quality or "", []
    for file in files:
        rows = read_rollouts(file)
        verified = verified or _verified(rows, component, path)
        actions += list(_actions(rows, component, scale, verified))
    if quality is not None and all(action.quality is None for action in actions):
        raise UserError(
            f"no action has a score '{quality}'", path="--quality", fix="see `scores` in rollouts"
        )
    trajectory = table.get("per") == "trajectory"
    return _report(name, verified, actions, _cost(folder, actions, trajectory), len(files))


def coaches(config: Mapping[str, Any]) -> list[str]:
    """The names of the reward sources of type coach in a run's configuration."""
    return [
        name
        for name, table in (config.get("rewards") or {}).items()
        if isinstance(table, Mapping) and table.get("type") == "coach"
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


def _verified(rows: list[dict[str, Any]], component: str, path: Path) -> str:
    """The component of single actions that isn't the coach's; empty where there is none."""
    names = {
        name
        for row in rows
        if row["kind"] == "branch"
        for name in row["scores"]
        if not name.startswith("team.") and name != component
    }
    if len(names) > 1:
        raise UserError(
            f"several components score single actions: {', '.join(sorted(names))}",
            path="--quality",
            fix="name the one that is verified",
        )
    return names.pop() if names else ""


def _actions(rows: list[dict[str, Any]], component: str, scale: float, verified: str) -> Iterator[Action]:
    step = next((int(row["step"]) for row in rows if row["kind"] == "step"), 0)
    success: dict[tuple[str, int, int], list[float]] = {}
    for row in rows:
        if row["kind"] == "joint" and row["outcome"] is not None:
            success.setdefault(_episode(row), []).append(float(row["outcome"]["success"]))
    for row in rows:
        if row["kind"] != "branch" or component not in row["scores"]:
            continue
        if row["fault"] is not None and row["fault"]["kind"] == "system":
            continue  # nobody asked the coach
        value, known = row["scores"][component], row["scores"].get(verified)
        taken = ANSWERS.search(row.get("comments", {}).get(component, ""))
        again = MALFORMED in row["reasons"].get(component, "")
        outcomes = success.get(_episode(row), [])
        yield Action(
            step=step,
            task=row["task_id"],
            episode=_episode(row),
            role=row["role"],
            stratum=row.get("stratum", ""),
            score=None if value is None else 10 * value / scale,
            quality=None if known is None else float(known),
            answers=int(taken[2]) if taken else 2 if again else 1,
            version=taken[1] if taken else "",
            success=outcomes[0] if len(outcomes) == 1 else None,
        )


def _episode(row: Mapping[str, Any]) -> tuple[str, int, int]:
    return row["task_id"], row["epoch"], row["chain"]


def _cost(folder: RunFolder, actions: list[Action], trajectory: bool) -> dict[str, Any]:
    """Answers of the coach, and what the run's remote models have spent, by component."""
    if trajectory:
        calls = {(action.step, action.episode): action.answers for action in actions}
        answers, again = sum(calls.values()), sum(count > 1 for count in calls.values())
    else:
        answers = sum(action.answers for action in actions)
        again = sum(action.answers > 1 for action in actions)
    spent = {}
    for file in sorted((folder.path / "remote").glob("usage-*.json")):
        table = json.loads(file.read_text(encoding="utf-8"))
        spent[file.stem.removeprefix("usage-")] = table["total"]
    return {"answers": answers, "asked_again": again, "spent": spent}


def _report(name: str, verified: str, actions: list[Action], cost: dict[str, Any], steps: int) -> CoachReport:
    scored = [action for action in actions if action.score is not None]
    columns = _columns(scored)
    measured = effects(columns) if verified else None
    versions: dict[str, int] = {}
    for action in scored:
        if action.version and action.version != "version unknown":
            versions.setdefault(action.version, action.step)
    report = CoachReport(
        source=name,
        verified=verified,
        steps=steps,
        actions=len(actions),
        missing=len(actions) - len(scored),
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


def _columns(scored: list[Action]) -> ScoredActions:
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


def _agreement(scored: list[Action], columns: ScoredActions) -> dict[str, Any]:
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
        table[name] = _correlation(columns, other, known) | {
            "roles": {
                str(role): _correlation(columns, other, known & (columns.role == role))
                for role in np.unique(columns.role)
            }
        }
    return table


def _correlation(columns: ScoredActions, other: Any, chosen: Any) -> dict[str, Any]:
    rho = rank_correlation(columns.score[chosen], other[chosen])
    tasks = len(np.unique(columns.task[chosen]))
    return {
        "rho": rho,
        "ci95": list(correlation_interval(rho, tasks)),
        "n": int(chosen.sum()),
        "tasks": tasks,
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
        warnings.append(f"{share:.0%} of the scores are missing")
    if len(report.versions) > 1:
        changes = ", ".join(f"{version} from step {step}" for version, step in report.versions.items())
        warnings.append(f"the coach's model changed: {changes}")
    return warnings


def _limits(report: CoachReport, spent: bool) -> list[str]:
    limits = []
    if not report.verified:
        limits.append(
            "no verified quality of single actions: the scores are compared with the episode's outcome "
            "alone, which tells neither whether a role is favoured nor whether the coach or the team changes"
        )
    elif report.effects is None:
        limits.append(f"bias and drift need {LEAST_ACTIONS} actions that are scored and verified")
    elif report.effects.drift is None:
        limits.append("all rollouts are of one step, so there is no drift to see")
    if not spent:
        limits.append("no record of tokens and money: the coach is no remote model, or asked for nothing")
    return limits
