"""`coterie.credit`: what a run credited its roles with, and whether that is what their actions change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.analysis.credit.actions import CreditedAction, credited_actions, way_of
from coterie.analysis.credit.component_returns import Component, Rules, Way
from coterie.analysis.credit.components import ScoreRange, add_ranges
from coterie.analysis.credit.free_riders import OwnEffect, own_effects
from coterie.analysis.credit.table import TurnCredit, turn_credits
from coterie.analysis.records import RunRecords, step_row_of
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
    way: Way
    """The way of making returns whose parts the components' shares are of."""
    exact: bool
    """Whether the recorded returns are made that way; else they have parts that are no component's."""
    turns: Sequence[TurnCredit]
    own: Mapping[str, OwnEffect]
    """By role: how far what it earns depends on what it does."""
    components: Sequence[ScoreRange]
    notes: list[str] = field(default_factory=list)
    """What the report can't tell, and why."""

    @property
    def free_riders(self) -> list[str]:
        """Roles that earn the same whatever they do."""
        return [role for role, effect in self.own.items() if effect.rides]

    @property
    def dead_components(self) -> list[str]:
        """Components that count and never vary, as `owner.component`."""
        return [component.name for component in self.components if component.dead]

    def as_dict(self) -> dict[str, Any]:
        """The JSON of `coterie credit --json`."""
        return {
            "run": str(self.folder),
            "steps": list(self.steps),
            "returns": {"way": self.way, "exact": self.exact},
            "turns": [turn.as_dict() for turn in self.turns],
            "roles": {role: effect.as_dict() for role, effect in self.own.items()},
            "components": [component.as_dict() for component in self.components],
            "free_riders": self.free_riders,
            "dead_components": self.dead_components,
            "notes": list(self.notes),
        }

    def write(self, path: Path) -> None:
        """Write the JSON.

        Raises:
            WriteError: the file can't be written; nothing of it is there.
        """
        write_atomic(path, to_json(self.as_dict()) + "\n")


def credit(folder: Path | str, *, step: int | None = None, last: int | None = None) -> CreditReport:
    """What a run credited its roles with, read off its recorded steps.

    Args:
        folder: the run's.
        step: only this recorded step.
        last: only the last so many recorded steps.

    Raises:
        RunFolderError: no run, or none of its steps was recorded.
        UserError: the step was not recorded.
    """
    records = RunRecords.open(folder)
    return table_of(records, chosen_steps(records, step, last))


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
    settings = _settings(records)
    gamma = float(settings["algorithm"].get("gamma") or 1.0)
    actions: list[CreditedAction] = []
    ranges: dict[Component, ScoreRange] = {}
    for step in steps:
        rows = records.rows(step)
        rules, trees = Rules.of(step_row_of(rows, records.files[step]), gamma), trees_of(rows, step)
        actions += credited_actions(trees, rules)
        add_ranges(ranges, trees, rules)
    way, exact = way_of(actions)
    weights = {place: component.weight for place, component in ranges.items()}
    length = str(settings["loss"].get("length", "token_mean"))
    report = CreditReport(
        folder=records.folder.path,
        steps=steps,
        way=way,
        exact=exact,
        turns=turn_credits(actions, way, weights, length),
        own=own_effects(actions, way),
        components=list(ranges.values()),
    )
    report.notes.extend(_limits(report, records))
    return report


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
            f"what the components add by '{report.way}'"
        )
    unknown = [role for role, effect in report.own.items() if not effect.prompts]
    if unknown:
        yield f"{', '.join(unknown)}: each prompt was answered in one way, so its own effect is not known"
