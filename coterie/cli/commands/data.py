"""`coterie data`: tasks as files, records split by content, and checks of what splits share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.data_packs import make_pack, mix
from coterie.cli.data_show import SPLITS, opened, show, show_files, show_leaks
from coterie.cli.options import json_option, layer_options, out_option, overrides, plugin_option
from coterie.cli.output import print_json, table
from coterie.core.errors import UserError

if TYPE_CHECKING:
    from coterie.compose import RolloutParts
    from coterie.core.types.splits import Split
    from coterie.data.task_files import PreparedSplits

PACK = "ds-pack"
"""What `make` takes in the place of a recipe: synthetic data-science tasks."""
TASKS = 10_000
"""Tasks of a split that are written or compared by default."""
split_option = click.option(
    "--split", "splits", type=click.Choice(SPLITS), multiple=True, help="Repeatable [all three]."
)
data_out_option = out_option("DIR", required=True, file_okay=False)
force_option = click.option("--force", is_flag=True, help="Replace the data set that is in DIR.")


@click.group(short_help="Write tasks as files, split records by content, find leaks.")
def command() -> None:
    """Write tasks as files, split records by content, find leaks.

    The games' splits are disjoint by content; `leaks` checks that, for these and for any record files.
    """


command.add_command(show)
command.add_command(mix)

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


# ---------------------------------------------------------------------------------------------------- prepare


@command.command(short_help="Split records by content and drop duplicates.")
@click.argument("source")
@click.argument("settings", metavar="[KEY=VALUE]...", nargs=-1)
@data_out_option
@click.option(
    "--key",
    "keys",
    metavar="FIELD",
    multiple=True,
    help="A field that is content (repeatable) [all fields].",
)
@click.option(
    "--rename", "renames", metavar="OLD=NEW", multiple=True, help="Rename a field first (repeatable)."
)
@click.option("--val-share", type=click.FloatRange(0, 1, max_open=True), help="Share of the records [0.1].")
@click.option("--test-share", type=click.FloatRange(0, 1, max_open=True), help="Share of the records [0.1].")
@click.option(
    "--keep-splits",
    "keep",
    is_flag=True,
    help="Keep the source's test split, and its validation split if it has one.",
)
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Most distinct records [all].")
@click.option("--subset", metavar="NAME", help="Subset of a data set of the Hub, e.g. main.")
@click.option("--revision", metavar="NAME", help="Branch, tag or commit of a data set of the Hub.")
@force_option
@json_option
@plugin_option
def prepare(
    source: str,
    settings: tuple[str, ...],
    out: Path,
    keys: tuple[str, ...],
    renames: tuple[str, ...],
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Split records by the hash of their content and drop duplicates: train, val and test as JSONL.

    SOURCE is a .jsonl, .json (.gz too) or .parquet file, a folder with such a file for each split, or a data
    set of the Hub by its id. The output depends on the records alone, not on their order.

    With --keep-splits, records of the source's test split are dropped from the others. A --limit holds for
    each split that is kept, and for the records that are split.

    SOURCE may also be the name of a known set, such as humaneval: its records are written in the form that
    our environments read, with the set's splits, or those that `KEY=VALUE` settings choose.

    \b
        coterie data prepare openai/gsm8k --subset main --keep-splits --key question --out data/gsm8k
        coterie data prepare humaneval file=HumanEval.jsonl.gz "train=test[:100]" -o data/humaneval
    """
    from coterie.cli.data_sets import check_spelling, is_known, prepare_set
    from coterie.cli.split_options import counts

    if not source.strip():
        raise UserError("SOURCE is empty", fix="name a file, a set of the Hub as OWNER/NAME, or a known set")
    if is_known(source):
        given = {"key": keys, "rename": renames, **options}
        manifest, notes = prepare_set(source, overrides(settings), given, out, force=force)
        if as_json:
            print_json({**manifest, "notes": notes})
        else:
            show_files(out, manifest, notes)
        return
    check_spelling(source)
    if settings:
        raise UserError(
            f"{source} takes no settings such as '{settings[0]}'",
            why="they are for known sets, by name",
            fix="use the options of this command; `coterie plugins --kind data_source` lists the sets",
        )
    prepared, facts, notes = _prepared(source, out, keys, renames, force, **options)
    manifest = _write_splits(out, prepared, facts, force=force)
    if as_json:
        print_json({**manifest, "notes": notes})
        return
    rows = [[name.replace("_", " "), f"{count:,}"] for name, count in counts(prepared).items()]
    click.echo(table(["records", "count"], rows) + "\n")
    if prepared.conflicts:
        differ = "differ from the record that was kept, in fields that are no key"
        notes.append(f"{prepared.conflicts:,} of the duplicates {differ}")
    show_files(out, manifest, notes)


def _prepared(
    source: str,
    out: Path,
    keys: tuple[str, ...],
    renames: tuple[str, ...],
    force: bool,
    *,
    keep: bool,
    subset: str | None,
    revision: str | None,
    **options: Any,
) -> tuple[PreparedSplits, dict[str, Any], list[str]]:
    """Read the source and split its records; nothing is written.

    Returns:
        the records by split, what the manifest says of them, and notes for the user.
    """
    from coterie import __version__
    from coterie.cli.split_options import counts, renamings, split_rule
    from coterie.data import sources
    from coterie.data.task_files import existing_files, rename_fields, split_records

    existing_files(out, force=force)
    body, kept, notes = sources.read_source(source, keep=keep, subset=subset, revision=revision)
    rule, names = split_rule(keys, kept, **options), renamings(renames)
    body, kept = (
        rename_fields(body, names),
        {split: rename_fields(rows, names) for split, rows in kept.items()},
    )
    if not keys and body and "id" in body[0].record:
        notes.append("every field is content, 'id' too: --key FIELD names those that are")
    prepared = split_records(body, rule, kept)
    facts = {
        "made_by": "coterie data prepare",
        "version": __version__,
        "source": source,
        "subset": subset,
        "revision": revision,
        "renamed": names,
        "kept_splits": list(kept),
        **asdict(rule),
        "counts": counts(prepared),
    }
    return prepared, facts, notes


def _write_splits(
    out: Path, prepared: PreparedSplits, facts: dict[str, Any], *, force: bool
) -> Mapping[str, Any]:
    """Write a JSONL file for each split, and the manifest."""
    from coterie.data.sources import write_records
    from coterie.data.task_files import claim, write_manifest

    claim(out, force=force)
    files = {}
    for split, records in prepared.splits.items():
        path = out / f"{split}.jsonl"
        files[split] = path, write_records(path, records)
    return write_manifest(out, facts, files)


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
    from coterie.data import sources, split_leaks
    from coterie.data.leaks import leaks as find_leaks

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
        by_split, scope = split_leaks.task_fingerprints(run, tasks or (TASKS if folder is None else None))
    else:
        by_split, scope = split_leaks.record_fingerprints(names, folder, keys, tasks)
    result = find_leaks(by_split)
    notes = [*scope.notes, *scope.answers.notes()]
    if as_json:
        print_json({"leaking": bool(result.shared), **asdict(result), "there": scope.sizes, "notes": notes})
    else:
        show_leaks(result, scope.sizes, notes)
    raise SystemExit(1 if result.shared else 0)
