"""`coterie.credit`: what a run credited its roles with, and whether that is what their actions change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coterie.analysis.credit.actions import CreditedAction, credited_actions, return_kind_of
from coterie.analysis.credit.check import Against, Counterfactual, counterfactual
from coterie.analysis.credit.component_returns import Component, ReturnKind, Rules, ScoreRange, add_ranges
from coterie.analysis.credit.effects import TurnEffect
from coterie.analysis.credit.free_riders import OwnEffect, own_effects
from coterie.analysis.credit.table import TurnCredit, turn_credits
from coterie.analysis.records import RunRecords, step_row_of
from coterie.api.addresses import Which
from coterie.api.episodes import trees_of
from coterie.core.errors import UserError
from coterie.core.storage.atomic import write_atomic
from coterie.core.storage.jsonl import to_json


@dataclass(frozen=True, slots=True)
class CreditReport:
    """Credit by role and turn."""

    folder: Path
    steps: Sequence[int]
    """The recorded steps that it is of."""
    kind: ReturnKind
    """The kind of return whose parts the components' shares are of."""
    exact: bool
    """Whether the recorded returns are of that kind; else they have parts that are no component's."""
    turns: Sequence[TurnCredit]
    by_role: Mapping[str, OwnEffect]
    """By role: how far what it earns depends on what it does."""
    components: Sequence[ScoreRange]
    notes: list[str] = field(default_factory=list)
    """What the report can't tell, and why."""
    check: Counterfactual | None = None
    """What replacing actions changes; None: it was not asked for."""

    @property
    def free_riders(self) -> list[str]:
        """Roles that earn the same whatever they do."""
        return [role for role, effect in self.by_role.items() if effect.rides]

    @property
    def dead_components(self) -> list[str]:
        """Components that count and never vary, as `owner.component`."""
        return [component.name for component in self.components if component.dead]

    @property
    def disagreements(self) -> list[TurnEffect]:
        """Roles and turns whose advantages say something else than the counterfactual check."""
        effects = self.check.effects if self.check is not None else ()
        return [effect for effect in effects if effect.verdict in ("disagrees", "uncredited")]

    def as_dict(self) -> dict[str, Any]:
        """The JSON of `coterie credit --json`."""
        return {
            "run": str(self.folder),
            "steps": list(self.steps),
            "returns": {"kind": self.kind, "exact": self.exact},
            "turns": [turn.as_dict() for turn in self.turns],
            "roles": {role: effect.as_dict() for role, effect in self.by_role.items()},
            "components": [component.as_dict() for component in self.components],
            "free_riders": self.free_riders,
            "dead_components": self.dead_components,
            "notes": list(self.notes),
            **({} if self.check is None else {"check": self.check.as_dict()}),
        }

    def write(self, path: Path) -> None:
        """Write the JSON.

        Raises:
            WriteError: the file can't be written; nothing of it is there.
        """
        write_atomic(path, to_json(self.as_dict()) + "\n")


def credit(
    folder: Path | str,
    *,
    step: int | None = None,
    last: int | None = None,
    check: bool = False,
    against: Against = "null",
    tasks: int = 16,
    samples: int = 2,
    roles: Collection[str] = (),
    checkpoint: Which | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CreditReport:
    """What a run credited its roles with, read off its recorded steps.

    Args:
        folder: the run's.
        step: only this recorded step.
        last: only the last so many recorded steps.
        check: also replace recorded actions, play on with the run's weights, and compare. States are of the
            newest of the steps that have enough tasks.
        against: what replaces an action: `null` (silence), `untrained`, or the step of a checkpoint whose
            policy acts.
        tasks: most tasks of the check.
        samples: times that each action, and its replacement, is played on.
        roles: the roles that are checked; empty: all.
        checkpoint: whose weights play on: `best`, `latest` or a step; None: those nearest to the weights that
            played the newest step.
        progress: is called with the playouts that have ended and their number.

    Raises:
        RunFolderError: no run, or none of its steps was recorded.
        UserError: the step was not recorded; or the check is impossible.
    """
    records = RunRecords.open(folder)
    steps = chosen_steps(records, step, last)
    report = table_of(records, steps)
    if not check:
        return report
    made = counterfactual(
        records,
        _steps_with(records, steps, tasks),
        against=against,
        tasks=tasks,
        samples=samples,
        roles=roles,
        checkpoint=checkpoint,
        gamma=_gamma(records),
        progress=progress,
    )
    return replace(report, check=made)


def _steps_with(records: RunRecords, steps: Sequence[int], tasks: int) -> list[int]:
    """The newest of the steps that together have so many tasks, in order."""
    seen: set[str] = set()
    for count, step in enumerate(reversed(steps), 1):
        seen |= {tree.task_id for tree in records.trees(step)}
        if len(seen) >= tasks:
            return list(steps[-count:])
    return list(steps)


def chosen_steps(records: RunRecords, step: int | None, last: int | None) -> list[int]:
    """The recorded steps that a caller wants; without a wish, all.

    Raises:
        UserError: the step was not recorded, or both are given.
    """
    if step is not None and last is not None:
        raise UserError("--step and --last are two choices of steps", fix="leave one out")
    if last is not None and last < 1:
        raise UserError(f"the last {last} steps are none", path="--last", fix="1 or more")
    return records.steps[-last:] if last is not None else records.chosen(step, every=step is None)


def table_of(records: RunRecords, steps: Sequence[int]) -> CreditReport:
    """The report of some recorded steps."""
    gamma = _gamma(records)
    actions: list[CreditedAction] = []
    ranges: dict[Component, ScoreRange] = {}
    changed: list[int] = []
    before: Rules | None = None
    for step in steps:
        rows = records.rows(step)
        rules, trees = Rules.of(step_row_of(rows, records.files[step]), gamma), trees_of(rows, step)
        actions += credited_actions(trees, rules)
        add_ranges(ranges, trees, rules)
        if before not in (None, rules):
            changed.append(step)
        before = rules
    kind, exact = return_kind_of(actions)
    weights = {place: component.weight for place, component in ranges.items()}
    length = str(_settings(records)["loss"].get("length", "token_mean"))
    report = CreditReport(
        folder=records.folder.path,
        steps=steps,
        kind=kind,
        exact=exact,
        turns=turn_credits(actions, kind, weights, length),
        by_role=own_effects(actions, kind),
        components=list(ranges.values()),
    )
    report.notes.extend(_limits(report, records))
    if changed:
        at = ", ".join(map(str, changed))
        report.notes.append(
            f"the rewards' weights are those of step {steps[0]}; others count from step {at} on"
        )
    return report


def _gamma(records: RunRecords) -> float:
    """The discount of the algorithm's returns; 1 where it has none."""
    gamma = _settings(records)["algorithm"].get("gamma")
    return 1.0 if gamma is None else float(gamma)


def _settings(records: RunRecords) -> dict[str, Mapping[str, Any]]:
    """The tables `algorithm` and `loss` with their defaults, as far as the run has a record of them."""
    made = records.record.settings if records.record is not None else records.resolved.config.model_dump()
    tables = {name: made.get(name) for name in ("algorithm", "loss")}
    return {name: table if isinstance(table, Mapping) else {} for name, table in tables.items()}


def _limits(report: CreditReport, records: RunRecords) -> Iterable[str]:
    every = records.config.schedule.record_every
    if every > 1:
        yield f"one step in {every} is recorded (schedule.record_every), and counted"
    if not any(turn.trained for turn in report.turns):
        yield "no action has an advantage: nothing was trained, or every score is missing"
    elif not report.exact:
        yield (
            "the recorded returns hold more than the components (a KL penalty, values): shares are of "
            f"what the components add by '{report.kind}'"
        )
    unknown = {role: effect.unscored for role, effect in report.by_role.items() if not effect.prompts}
    if one_text := [role for role, of in unknown.items() if not of]:
        yield f"{', '.join(one_text)}: each prompt was answered with one text, so its own effect is not known"
    if unscored := [role for role, of in unknown.items() if of]:
        yield f"{', '.join(unscored)}: different answers lack scores, so its own effect is not known"
