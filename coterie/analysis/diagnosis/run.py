"""The diagnosis of a run folder: its evidence, and the known sicknesses that it shows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.analysis.credit.component_returns import Rules
from coterie.analysis.credit.free_riders import CreditSickness, sicknesses as credit_sicknesses
from coterie.analysis.diagnosis import rules_of_policies, rules_of_roles, rules_of_runs
from coterie.analysis.diagnosis.evidence import Row, RunEvidence, Sickness, SicknessRule
from coterie.analysis.diagnosis.role_table import RoleInStep, roles_in_step
from coterie.api.episodes import RecordedTree, trees_of
from coterie.api.rollouts import read_rollouts
from coterie.api.rows import read_metrics
from coterie.api.run_record import read_record
from coterie.core.errors import RunFolderError, UserError
from coterie.core.storage.jsonl import read_lines
from coterie.core.storage.run_folder import RunFolder
from coterie.recipes import read_yaml

log = logging.getLogger("coterie")

MOST_RECORDED = 24
"""Recorded steps that are read, spread evenly over the run: a diagnosis of any run takes seconds."""


_EVERY = (*rules_of_runs.RULES, *rules_of_policies.RULES, *rules_of_roles.RULES)
RULES: tuple[SicknessRule, ...] = tuple(sorted(_EVERY, key=lambda rule: rule.grade == "warning"))
"""All known sicknesses of runs, the gravest first. docs/doctor.md has them as a table."""

EXPLAINED: dict[str, frozenset[str]] = {
    "dead_component": frozenset({"no_variance", "reward_unchanged", "all_missing"}),
    "zero_gradient": frozenset({"no_variance", "all_missing"}),
    "no_variance": frozenset({"all_missing"}),
    "reward_unchanged": frozenset({"all_missing"}),
    "few_updates": frozenset({"no_variance", "all_missing", "zero_gradient"}),
    "mismatch": frozenset({"stale_weights"}),
    "sharpening": frozenset({"stale_weights"}),
    "success_falls": frozenset({"reward_without_success"}),
    "learns_nothing": frozenset(
        {"success_falls", "reward_without_success", "stale_weights", "entropy_collapse"}
    ),
}
"""A kind -> kinds of which it is a consequence: where they are there, it is left out."""


def sicknesses(evidence: RunEvidence) -> list[Sickness]:
    """The known sicknesses that the evidence shows, in the order of the rules and their subjects."""
    every = [sickness for rule in RULES for sickness in rule.of(evidence)]

    def explains(cause: Sickness, of: Sickness) -> bool:
        same = not cause.subject or of.subject in ("", cause.subject)
        return same and cause.kind in EXPLAINED.get(of.kind, frozenset())

    return [each for each in every if not any(explains(other, each) for other in every)]


@dataclass(frozen=True, slots=True)
class RunDiagnosis:
    """What is wrong with a run, as far as it is known."""

    folder: Path
    steps: int
    """The last step with a row."""
    recorded: tuple[int, ...]
    """The recorded steps that were read."""
    sicknesses: tuple[Sickness, ...]
    """The gravest first; empty: none that is known."""
    remarks: tuple[str, ...] = ()
    """What could not be read."""

    @property
    def ok(self) -> bool:
        """Whether no sickness is a fault."""
        return all(sickness.grade != "fault" for sickness in self.sicknesses)

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, for JSON."""
        return {
            "folder": str(self.folder),
            "ok": self.ok,
            "steps": self.steps,
            "recorded": [*self.recorded],
            "sicknesses": [sickness.as_dict() for sickness in self.sicknesses],
            "remarks": [*self.remarks],
        }


def diagnose_run(path: Path | str, *, rollouts: bool = True) -> RunDiagnosis:
    """Look for known sicknesses in the rows and the rollout files of a run.

    Args:
        rollouts: whether to read rollout files; without them only `metrics.jsonl` is read, in milliseconds.

    Raises:
        RunFolderError: the path is no run folder, or its rows are damaged.
    """
    folder = RunFolder.open(Path(path))
    # A run that has just ended was warned of the rows that it lacks; and it needs none for a first look.
    rows = read_metrics(folder.metrics) if rollouts else _quietly(folder.metrics)
    settings = _settings(folder)
    remarks = [] if rows else [f"{folder.metrics.name} has no row, so that nothing can be said of the run"]
    trees: dict[int, list[RecordedTree]] = {}
    rules: dict[int, Rules] = {}
    if rollouts:
        for file in _spread(folder.rollout_files()):
            try:
                rows_of_step = [_without_tokens(row) for row in read_rollouts(file)]
                for tree in trees_of(rows_of_step):
                    trees.setdefault(tree.step, []).append(tree)
                rules |= {row["step"]: Rules.of(row) for row in rows_of_step if row["kind"] == "step"}
            except (RunFolderError, KeyError) as error:  # a damaged file; the others say what they say
                remarks.append(f"{file.name} can't be read: {' '.join(str(error).split())[:200]}")
    credit: list[CreditSickness] = []
    if trees and trees.keys() == rules.keys():  # before format 3 no row said how scores become rewards
        try:
            credit = credit_sicknesses(trees, rules)
        except (KeyError, ValueError) as error:
            remarks.append(f"credit can't be computed again: {type(error).__name__}: {error}")
    return RunDiagnosis(
        folder.path,
        int(rows[-1]["step"]) if rows else 0,
        tuple(sorted(trees)),
        tuple(sicknesses(evidence_of(rows, settings, trees, credit))),
        tuple(remarks),
    )


def _quietly(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file by step, the last of each; none where there is no file."""
    rows = read_lines(path) if path.is_file() else ()
    by_step = {row["step"]: row for _, row in rows if row is not None}
    return [by_step[step] for step in sorted(by_step)]


def evidence_of(
    rows: Sequence[Row],
    settings: Mapping[str, Any] | None = None,
    trees: Mapping[int, Sequence[RecordedTree]] | None = None,
    credit: Sequence[CreditSickness] = (),
) -> RunEvidence:
    """The evidence of rows of `metrics.jsonl` and of recorded steps.

    Args:
        settings: the run's configuration.
        trees: by recorded step.
        credit: what the recorded steps show of free-riders and dead components.
    """
    tables: dict[int, list[RoleInStep]] = {}
    versions: dict[str, dict[int, int]] = {}
    for step, of in sorted((trees or {}).items()):
        tables[step] = roles_in_step(of)
        for policy, version in _versions(of).items():
            versions.setdefault(policy, {})[step] = version
    return RunEvidence([row for row in rows if row["step"] > 0], settings or {}, tables, versions, credit)


def _without_tokens(row: dict[str, Any]) -> dict[str, Any]:
    """A rollout row whose tokens are only counted: 24 steps of long answers would fill the memory."""
    if "calls" in row:
        short = {"logprobs": (), "prompt_ids": ()}
        row["calls"] = [
            {**call, **short, "token_ids": range(len(call["token_ids"]))} for call in row["calls"]
        ]
        row["annotations"] = {}
    row.pop("prompt_ids", None)
    return row


def _versions(trees: Sequence[RecordedTree]) -> dict[str, int]:
    """By policy, the newest version of the weights that drew an action."""
    newest: dict[str, int] = {}
    for tree in trees:
        for node in tree.nodes.values():
            for decision in node.decisions.values():
                for branch in decision.branches:
                    if (version := branch.get("version")) is not None:
                        policy = branch["policy"]
                        newest[policy] = max(newest.get(policy, 0), int(version))
    return newest


def _spread(files: Sequence[Path]) -> list[Path]:
    """At most `MOST_RECORDED` files, the first and the last among them."""
    if len(files) <= MOST_RECORDED:
        return [*files]
    step = (len(files) - 1) / (MOST_RECORDED - 1)
    return [files[round(index * step)] for index in range(MOST_RECORDED)]


def _settings(folder: RunFolder) -> Mapping[str, Any]:
    """The run's settings, with every default where its record has them."""
    record = read_record(folder.path)
    if record is not None:
        return record.settings
    try:
        table = read_yaml(folder.config)
    except UserError as error:
        log.warning("%s can't be read: %s", folder.config, " ".join(str(error).split()))
        return {}
    return table if isinstance(table, Mapping) else {}
