"""`coterie data`: tasks as files, records split by content, and checks of what splits share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.data_prepare import prepare
from coterie.cli.data_show import SPLITS, data_out_option, force_option, opened, show, show_files, show_leaks
from coterie.cli.options import json_option, layer_options, overrides, plugin_option
from coterie.cli.output import print_json, table
from coterie.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from coterie.compose import RolloutParts
    from coterie.core.protocols import TaskSource
    from coterie.core.types.splits import Record, RecordLine, Split

PACK = "ds-pack"
"""What `make` takes in the place of a recipe: synthetic data-science tasks."""
TASKS = 10_000
"""Tasks of a split that are written or compared by default."""
split_option = click.option(
    "--split", "splits", type=click.Choice(SPLITS), multiple=True, help="Repeatable [all three]."
)


@click.group(short_help="Write tasks as files, split records by content, find leaks.")
def command() -> None:
    """Write tasks as files, split records by content, find leaks.

    The games' splits are disjoint by content; `leaks` checks that, for these and for any record files.
    """


command.add_command(show)
command.add_command(prepare)

# ------------------------------------------------------------------------------------------------------- make


@command.command(short_help="Write an environment's tasks as files.")
@click.argument("source", metavar="RECIPE|FILE|RUN_DIR|ds-pack")
@click.argument("settings", metavar="[KEY=VALUE]...", nargs=-1)
@data_out_option
@split_option
@click.option(
    "--tasks", type=click.IntRange(min=1), help="Tasks of each split [all, at most 10,000; of ds-pack 18]."
)
@click.option(
    "--format", "ending", type=click.Choice(["jsonl", "parquet"]), default="jsonl", show_default=True
)
@click.option("--seed", type=click.IntRange(min=0), help="Of ds-pack [0].")
@force_option
@layer_options
@json_option
@plugin_option
def make(
    source: str,
    settings: tuple[str, ...],
    out: Path,
    splits: tuple[Split, ...],
    tasks: int | None,
    ending: str,
    seed: int | None,
    force: bool,
    overlays: tuple[str, ...],
    scale: str | None,
    as_json: bool,
) -> None:
    """Write an environment's tasks as files: one record a task, and a manifest with the files' sha256.

    A recipe with the printed lines plays exactly these tasks, whatever its seed.

    In place of a recipe, `ds-pack` gives synthetic data-science tasks with their CSV files, the same bytes
    for the same seed.

    \b
        coterie data make plan_path env.size=6 --out data/plan_path6 --tasks 500
        coterie data make ds-pack --out data/pack --tasks 18 --seed 1
    """
    from coterie.data import sources
    from coterie.data.task_files import existing_files

    if source == PACK:
        recipes_alone: dict[str, Any] = {"settings": settings, "--scale": scale, "--with": overlays}
        recipes_alone["--format parquet"] = ending != "jsonl"
        make_pack(out, splits, tasks, seed, force=force, as_json=as_json, others=recipes_alone)
        return
    if seed is not None:
        raise UserError(
            f"a recipe's seed is a setting: {source} takes no --seed", path="--seed", fix=f"write seed={seed}"
        )
    existing_files(out, force=force)
    run = sources.run_of(source, overrides(settings), scale, overlays)
    _write_tasks(run, out, splits, tasks, ending, force=force, as_json=as_json)


def _write_tasks(
    run: RolloutParts, out: Path, splits: Sequence[Split], most: int | None, ending: str, *, force: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Write the tasks of a run's environment, `most` of each split, and print what was written.

    Raises:
        UserError: the environment can't write its tasks as records, or the folder can't be written.
    """
    from coterie import __version__
    from coterie.core.config import to_yaml
    from coterie.data import sources
    from coterie.data.task_files import claim, write_manifest
    from coterie.discovery.members import RecordsTasks

    if not isinstance(run.environment, RecordsTasks):
        raise UserError(
            f"the environment '{run.config.env['type']}' can't write its tasks as records",
            path="env.type",
            why="it lacks `record(task)`, `task_of(record, id)` or both",
        )
    tasks_by_split, notes = sources.task_sources(run, splits)
    claim(out, force=force)
    files: dict[str, tuple[Path, int]] = {}
    for split, source_tasks in tasks_by_split.items():
        count = min(len(source_tasks), most or TASKS)
        path = out / f"{split}.{ending}"
        files[split] = path, sources.write_records(path, sources.records_of(run, source_tasks, count))
        if count < (most or len(source_tasks)):
            notes.append(_fewer(split, count, len(source_tasks), most))
    facts = {
        "made_by": "coterie data make",
        "version": __version__,
        "recipe": run.resolved.name,
        "environment": run.config.env,
        "seed": run.config.seed,
    }
    manifest = write_manifest(out, {**facts, "config": run.resolved.table}, files)
    paste = sources.to_paste(run, {split: path for split, (path, _) in files.items()})
    if as_json:
        print_json({**facts, "splits": manifest["splits"], "paste": paste, "notes": notes})
        return
    show_files(out, manifest, notes)
    click.echo("\nto play exactly these tasks:\n\n" + to_yaml(paste).rstrip())


def _fewer(split: str, count: int, available: int, wanted: int | None) -> str:
    if wanted is None:
        return f"{split}: {count:,} of {available:,} tasks; --tasks sets their number"
    return (
        f"{split}: {count:,} tasks, not {wanted:,}: there are no more; where tasks are generated, "
        f"env.{split}_tasks sets their number"
    )


# ------------------------------------------------------------------------------------------------------ leaks


@command.command(short_help="Find what splits share.")
@click.argument("arguments", metavar="RECIPE|FILE|DIR|RECORDS... [KEY=VALUE]...", nargs=-1, required=True)
@click.option(
    "--tasks", metavar="N", type=click.IntRange(min=1),
    help="Tasks of each split [all; of a recipe at most 10,000].",
)  # fmt: skip
@click.option(
    "--key", "keys", metavar="FIELD", multiple=True,
    help="A field of records that is content (repeatable) [all but id].",
)  # fmt: skip
@layer_options
@json_option
@plugin_option
def leaks(
    arguments: tuple[str, ...], tasks: int | None, keys: tuple[str, ...], overlays: tuple[str, ...],
    scale: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Find what splits share: splits of a recipe or of a data set's folder, or record files, each a split.

    Tasks are compared by the fingerprints that the environment makes of them (the whole problem; its
    solution where that is unique), records by their content. Exits 1 where two splits share one, else 0.
    Repeats within a split are reported and are no failure, and so are different answers to one problem.

    \b
        coterie data leaks plan_path --tasks 1000
        coterie data leaks train.jsonl test.jsonl --key question
    """
    from coterie.data import sources
    from coterie.data.leaks import leaks as find_leaks, record_fingerprints, task_fingerprints

    names = [argument for argument in arguments if "=" not in argument or Path(argument).exists()]
    settings = [argument for argument in arguments if argument not in names]
    if not names:
        raise UserError("nothing is named to compare", fix="name a recipe, a folder or record files")
    if len(names) > 1 and not all(map(sources.is_file, names)):
        raise UserError("of several names each must be a record file", why=f"given: {', '.join(names)}")
    run, folder = opened(names[0], settings, scale, overlays)
    if run is not None:
        if keys:
            raise UserError(
                "fields are for records", path="--key", why="the environment decides what is content"
            )
        by_split, scope = task_fingerprints(run, tasks or (TASKS if folder is None else None))
    else:
        by_split, scope = record_fingerprints(names, folder, keys, tasks)
    result = find_leaks(by_split)
    notes = [*scope.notes, *scope.answers.notes()]
    if as_json:
        print_json({"leaking": bool(result.shared), **asdict(result), "there": scope.sizes, "notes": notes})
    else:
        show_leaks(result, scope.sizes, notes)
    raise SystemExit(1 if result.shared else 0)


# -------------------------------------------------------------------------------- packs, and the mix of tasks

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
    from coterie.data.ds_pack import NAME, TASKS as OF_PACK, write_pack

    for option, value in others.items():
        if value:
            raise UserError(f"{NAME} takes no {option}", why="it is for recipes", fix="leave it out")
    facts = {"made_by": f"coterie data make {NAME}", "version": __version__}
    chosen = [split for split in SPLITS if not splits or split in splits]
    manifest, records = write_pack(out, chosen, tasks or OF_PACK, seed or 0, force=force, facts=facts)  # type: ignore[arg-type]
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


@command.command(short_help="Count tasks or records by what sorts them into classes.")
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
