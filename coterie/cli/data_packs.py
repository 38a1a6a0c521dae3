"""`coterie data make ds-pack` and `coterie data mix`: packs of data-science tasks, and the mix of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.data_show import SPLITS, opened, show_files
from coterie.cli.options import json_option, layer_options, plugin_option
from coterie.cli.output import print_json, table
from coterie.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from coterie.compose import RolloutParts
    from coterie.core.protocols import TaskSource
    from coterie.core.types.splits import Record, RecordLine, Split

GENERATED = 10_000
"""Tasks of a generator that are counted, of each split."""


def make_pack(
    out: Path, splits: Sequence[Split], tasks: int | None, seed: int | None, *, force: bool, as_json: bool,
    others: Mapping[str, Any],
) -> None:  # fmt: skip
    """Write a synthetic pack of data-science tasks, and print what it holds.

    Args:
        others: options that are for recipes, as they were given.

    Raises:
        UserError: one of `others` is given, or the folder can't be written.
    """
    from coterie import __version__
    from coterie.core.config import to_yaml
    from coterie.core.types.splits import RecordLine
    from coterie.data.ds_pack import NAME, TASKS, write_pack

    for option, value in others.items():
        if value:
            raise UserError(f"{NAME} takes no {option}", why="it is for recipes", fix="leave it out")
    facts = {"made_by": f"coterie data make {NAME}", "version": __version__}
    chosen = [split for split in SPLITS if not splits or split in splits]
    manifest, records = write_pack(out, chosen, tasks or TASKS, seed or 0, force=force, facts=facts)  # type: ignore[arg-type]
    paste = {"data": {"type": "ds_pack", "path": str(out)}}
    if as_json:
        print_json({**manifest, "paste": paste})
        return
    show_files(out, manifest, [])
    rows: dict[str, list[Record]] = {
        split: [_measured(RecordLine(record, split, 0)) for record in each] for split, each in records.items()
    }
    click.echo("\n" + _mix_text(rows, ()))
    click.echo("\nthe data source that reads it:\n\n" + to_yaml(paste).rstrip())


@click.command(short_help="Count tasks or records by what sorts them into classes.")
@click.argument("source", metavar="RECIPE|FILE|DIR|RECORDS")
@click.argument("settings", metavar="[KEY=VALUE]...", nargs=-1)
@click.option(
    "--by", "keys", metavar="KEY", multiple=True,
    help="A field, also one of `metadata` (repeatable) [all that sort into classes].",
)  # fmt: skip
@layer_options
@json_option
@plugin_option
def mix(
    source: str, settings: tuple[str, ...], keys: tuple[str, ...], overlays: tuple[str, ...],
    scale: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Count tasks or records by what sorts them into classes: the mix that `schedule.stratify` keeps.

    By default every key of the records' `metadata` counts that has 2 to 20 values, and the stratum that an
    environment gives its tasks. Of generated tasks the first 10,000 of each split are counted.

    \b
        coterie data mix dsbench_modeling_train.json
        coterie data mix data/pack --by family
    """
    by_split, notes = _records(source, settings, scale, overlays)
    if as_json:
        counts = {split: _mix(records, keys) for split, records in by_split.items()}
        splits = {split: {"tasks": len(by_split[split]), "mix": each} for split, each in counts.items()}
        print_json({"splits": splits, "notes": notes})
        return
    click.echo(_mix_text(by_split, keys))
    for note in notes:
        click.echo(f"note: {note}")


def _records(
    source: str, settings: Sequence[str], scale: str | None, overlays: Sequence[str]
) -> tuple[dict[str, list[Record]], list[str]]:
    """The records of a source by split, and notes. A file of records is one split, under its name."""
    from coterie.data import sources

    run, folder = opened(source, settings, scale, overlays)
    if run is None:
        files = {Path(source).name: Path(source)} if folder is None else sources.split_files(folder)
        rows = {str(name): sources.read_rows(path) for name, path in files.items()}
        return {name: [_measured(row) for row in each] for name, each in rows.items()}, []
    by_split, notes = sources.task_sources(run)
    records = {str(split): _of_tasks(run, tasks) for split, tasks in by_split.items()}
    for split, tasks in by_split.items():
        if len(tasks) > len(records[split]):
            notes.append(f"of {split} the first {len(records[split]):,} of {len(tasks):,} tasks are counted")
    return records, notes


def _measured(row: RecordLine) -> Record:
    """A record; of a data-science task with `metric` and `kind`, as its metric says.

    Raises:
        DataError: nothing says how such a task is scored.
    """
    from coterie.compose.strata import metadata_of
    from coterie.plugins.envs.data_science.packs import TASK_TYPE, measured

    if metadata_of(row.record).get("task_type") != TASK_TYPE:
        return row.record
    return measured(row.record, file=row.file, line=row.line)


def _of_tasks(run: RolloutParts, tasks: TaskSource) -> list[Record]:
    """The records of tasks; a stratum that the environment gives a task is in its `metadata`."""
    from coterie.compose.strata import metadata_of, record_of

    records: list[Record] = []
    for at in range(len(tasks) if isinstance(tasks, (list, tuple)) else min(len(tasks), GENERATED)):
        record = record_of(run.environment, tasks[at])
        if stratum := tasks[at].stratum:
            record = {**record, "metadata": {**metadata_of(record), "stratum": stratum}}
        records.append(record)
    return records


def _mix(records: Sequence[Record], keys: Sequence[str]) -> dict[str, dict[str, int]]:
    """By key, how many records have which value.

    Raises:
        UserError: no record has a key that is asked for.
    """
    from coterie.compose.strata import counted, flat, metadata_of, mix as classes

    if not keys:
        return {key: dict(each) for key, each in classes([metadata_of(record) for record in records]).items()}
    tables = [flat(record) for record in records]
    known = {key for each in tables for key in each}
    for key in keys:
        if key not in known:
            raise UserError(f"no record has '{key}'", path="--by", fix=did_you_mean(key, known))
    return {key: dict(counted(each.get(key) for each in tables)) for key in keys}


def _mix_text(by_split: Mapping[str, Sequence[Record]], keys: Sequence[str]) -> str:
    """A table: a row for each split and key."""
    from coterie.compose.strata import mix_text

    rows = []
    for split, records in by_split.items():
        texts = {key: mix_text(each) for key, each in _mix(records, keys).items()}
        for key, text in (texts or {"-": "no key sorts them into classes"}).items():
            rows.append([split, f"{len(records):,}", key, text])
    return table(["split", "tasks", "by", "mix"], rows)
