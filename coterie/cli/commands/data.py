"""`coterie data`: tasks as files, records split by content, and whether splits share anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.options import json_option, overrides, plugin_option, scale_option
from coterie.cli.output import print_json, table
from coterie.core.errors import UserError

if TYPE_CHECKING:
    from coterie.core.training.run import Run
    from coterie.core.types.splits import Row, Split

TASKS = 10_000
"""Tasks of a split that are written, or compared, where no number is given."""
SPLITS = ("train", "val", "test")
split_option = click.option(
    "--split", "splits", type=click.Choice(SPLITS), multiple=True, help="Repeatable [all three]."
)
out_option = click.option(
    "--out", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), required=True, help="Where to."
)
force_option = click.option("--force", is_flag=True, help="Replace the data set that is in DIR.")


@click.group(short_help="Write tasks as files, split records by content, find leaks.")
def command() -> None:
    """Write tasks as files, split records by content, find leaks.

    Splits of the games are disjoint by content; `leaks` shows it, and finds it out of anybody's files.
    """


# ------------------------------------------------------------------------------------------------------- make


@command.command(short_help="Write an environment's tasks as files.")
@click.argument("source", metavar="RECIPE|FILE|RUN_DIR")
@click.argument("words", metavar="[KEY=VALUE]...", nargs=-1)
@out_option
@split_option
@click.option("--tasks", type=click.IntRange(min=1), help="Of each split [all of them, at most 10,000].")
@click.option(
    "--format", "ending", type=click.Choice(["jsonl", "parquet"]), default="jsonl", show_default=True
)
@force_option
@scale_option
@json_option
@plugin_option
def make(
    source: str,
    words: tuple[str, ...],
    out: Path,
    splits: tuple[Split, ...],
    tasks: int | None,
    ending: str,
    force: bool,
    scale: str | None,
    as_json: bool,
) -> None:
    """Write an environment's tasks as files: one record a task, and a manifest with the files' sha256.

    With the lines that it prints in a recipe, exactly these tasks are played, whatever the seed.

    \b
        coterie data make plan_path env.size=6 --out data/plan_path6 --tasks 500
    """
    from coterie import __version__
    from coterie.cli.data_output import show_files
    from coterie.core.config import to_yaml
    from coterie.data import sources as files
    from coterie.data.task_files import claim, older, write_manifest

    older(out, force=force)
    run = files.run_of(source, overrides(words), scale)
    lacking = [name for name in ("record", "task_of") if not hasattr(run.environment, name)]
    if lacking:
        raise UserError(
            f"the environment '{run.config.env['type']}' can't write its tasks as records",
            path="env.type",
            why=f"it has no {' and no '.join(lacking)}",
        )
    sources, notes = files.task_sources(run, splits)
    claim(out, force=force)
    written: dict[str, tuple[Path, int]] = {}
    for split, found in sources.items():
        count = min(len(found), tasks or TASKS)
        path = out / f"{split}.{ending}"
        written[split] = path, files.write_records(path, files.records_of(run, found, count))
        if count < (tasks or len(found)):
            notes.append(_fewer(split, count, len(found), tasks))
    facts = {
        "made_by": "coterie data make",
        "version": __version__,
        "recipe": run.resolved.name,
        "environment": run.config.env,
        "seed": run.config.seed,
    }
    manifest = write_manifest(out, {**facts, "config": run.resolved.table}, written)
    paste = files.to_paste(run, {split: path for split, (path, _) in written.items()})
    if as_json:
        print_json({**facts, "splits": manifest["splits"], "paste": paste, "notes": notes})
        return
    show_files(out, manifest, notes)
    click.echo("\nto play exactly these tasks:\n\n" + to_yaml(paste).rstrip())


def _fewer(split: str, count: int, there: int, asked: int | None) -> str:
    if asked is None:
        return f"{split}: {count:,} of {there:,} tasks; --tasks says how many"
    return (
        f"{split}: {count:,} tasks, not {asked:,}, for there are no more; where they are generated, "
        f"env.{split}_tasks sets their number"
    )


# ---------------------------------------------------------------------------------------------------- prepare


@command.command(short_help="Split records by content and drop duplicates.")
@click.argument("source")
@out_option
@click.option(
    "--key",
    "keys",
    metavar="FIELD",
    multiple=True,
    help="A field that is content (repeatable) [all of them].",
)
@click.option(
    "--rename", "renames", metavar="OLD=NEW", multiple=True, help="Rename a field first (repeatable)."
)
@click.option("--val-share", type=click.FloatRange(0, 1, max_open=True), help="Of the records [0.1].")
@click.option("--test-share", type=click.FloatRange(0, 1, max_open=True), help="Of the records [0.1].")
@click.option(
    "--keep-splits",
    "keep",
    is_flag=True,
    help="Keep the source's own test split, and validation split if any.",
)
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Most distinct records [all].")
@click.option("--subset", metavar="NAME", help="Of a data set of the Hub, e.g. main.")
@click.option("--revision", metavar="NAME", help="Of a data set of the Hub: branch, tag or commit.")
@force_option
@json_option
@plugin_option
def prepare(
    source: str,
    out: Path,
    keys: tuple[str, ...],
    renames: tuple[str, ...],
    keep: bool,
    subset: str | None,
    revision: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Split records by the hash of their content and drop duplicates: train, val and test as JSONL.

    SOURCE is a .jsonl, .jsonl.gz or .parquet file, a folder with such a file a split, or a data set of the
    Hub by its id. What is written depends on the records alone, not on their order.

    With --keep-splits what is in the source's test split is dropped from the others. A --limit holds for
    each split that is kept, and for what is split.

    \b
        coterie data prepare openai/gsm8k --subset main --keep-splits --key question --out data/gsm8k
    """
    from coterie import __version__
    from coterie.cli.data_output import show_files
    from coterie.cli.split_options import counts, cut_of, renamings
    from coterie.data import sources as files
    from coterie.data.task_files import claim, older, prepare as cut_up, renamed, write_manifest

    older(out, force=force)
    body, own, notes = files.read_source(source, keep=keep, subset=subset, revision=revision)
    cut, names = cut_of(keys, own, **options), renamings(renames)
    body, own = renamed(body, names), {split: renamed(rows, names) for split, rows in own.items()}
    if not keys and body and "id" in body[0].record:
        notes.append("every field is content, 'id' too: --key FIELD names those that are")
    found = cut_up(body, cut, own)
    claim(out, force=force)
    written = {}
    for split, records in found.splits.items():
        path = out / f"{split}.jsonl"
        written[split] = path, files.write_records(path, records)
    facts = {
        "made_by": "coterie data prepare",
        "version": __version__,
        "source": source,
        "subset": subset,
        "revision": revision,
        "renamed": names,
        "kept_splits": list(own),
        **asdict(cut),
        "counts": counts(found),
    }
    manifest = write_manifest(out, facts, written)
    if as_json:
        print_json({**manifest, "notes": notes})
        return
    rows = [[what.replace("_", " "), f"{count:,}"] for what, count in counts(found).items()]
    click.echo(table(["records", "count"], rows) + "\n")
    if found.conflicts:
        differ = "differ from the record that was kept, in fields that are no key"
        notes.append(f"{found.conflicts:,} of the duplicates {differ}")
    show_files(out, manifest, notes)


# ------------------------------------------------------------------------------------------------------- show


@command.command(short_help="Show tasks or records, or the prompts that are made of them.")
@click.argument("source", metavar="RECIPE|FILE|DIR|RECORDS")
@click.argument("words", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--split", type=click.Choice(SPLITS), help="Not of a single record file [test].")
@click.option("--tasks", type=click.IntRange(min=1), default=3, show_default=True, help="How many.")
@click.option("--role", metavar="ROLE", help="Also the prompt that this role sees at the start.")
@scale_option
@json_option
@plugin_option
def show(
    source: str,
    words: tuple[str, ...],
    split: Split | None,
    tasks: int,
    role: str | None,
    scale: str | None,
    as_json: bool,
) -> None:
    """Show tasks or records, or the prompts that are made of them; no model is loaded.

    A prompt is that of a first turn in which nobody has spoken. A chat template adds to it: its own words,
    and the role's tools.

    \b
        coterie data show plan_path --role planner --tasks 1
    """
    from coterie.cli.data_output import task_text
    from coterie.data import sources as files

    run, folder = _opened(source, words, scale)
    if run is None:
        if role is not None:
            raise UserError(f"{source} holds records: it has no roles", path="--role", fix="name a recipe")
        if split is not None and files.is_file(source):
            raise UserError(f"{source} is one file", path="--split", fix="name the file of that split")
        name, records = _one_file(source, folder, split or "test")
        rows = [{"id": f"{name}, line {row.line}", "record": dict(row.record)} for row in records[:tasks]]
    else:
        there = run.environment.tasks(split or "test", run.config.seed)
        rows = [files.task_row(run, there[at], role) for at in range(min(tasks, len(there)))]
    if as_json:
        print_json(rows)
        return
    click.echo("\n\n".join(task_text(row) for row in rows))


def _opened(source: str, words: Sequence[str], scale: str | None) -> tuple[Run | None, Path | None]:
    """The run of a recipe or of a made data set, None of records; and the folder with data."""
    from coterie.data import sources as files
    from coterie.data.task_files import MANIFEST, changed, read_manifest

    holds_data = files.is_folder(source)
    if not holds_data and not files.is_file(source):
        return files.run_of(source, overrides(words), scale), None
    if words or scale is not None:
        raise UserError(
            f"{source} is data: it takes no settings", why=f"given: {' '.join(words) or '--scale'}"
        )
    folder = Path(source)
    if not holds_data:
        return None, None
    if not (folder / MANIFEST).is_file():
        return None, folder
    manifest = read_manifest(folder)
    for name in changed(folder, manifest):
        click.echo(f"warning: {folder / name} is not the file that {MANIFEST} tells of", err=True)
    return files.made_run(folder, manifest), folder


def _one_file(source: str, folder: Path | None, split: Split) -> tuple[str, list[Row]]:
    from coterie.data import sources as files

    path = Path(source)
    if folder is not None:
        there = files.split_files(folder)
        if split not in there:
            raise UserError(
                f"{folder} has no split '{split}'", path="--split", fix=f"it has: {', '.join(there)}"
            )
        path = there[split]
    return path.name, files.read_rows(path)


# ------------------------------------------------------------------------------------------------------ leaks


@command.command(short_help="Find what splits share.")
@click.argument("words", metavar="RECIPE|FILE|DIR|RECORDS... [KEY=VALUE]...", nargs=-1, required=True)
@click.option(
    "--tasks", metavar="N", type=click.IntRange(min=1),
    help="Of each split [all of them; of a recipe at most 10,000].",
)  # fmt: skip
@click.option(
    "--key", "keys", metavar="FIELD", multiple=True,
    help="Of records: a field that is content (repeatable) [all but id].",
)  # fmt: skip
@scale_option
@json_option
@plugin_option
def leaks(
    words: tuple[str, ...], tasks: int | None, keys: tuple[str, ...], scale: str | None, as_json: bool
) -> None:
    """Find what splits share: of a recipe, of a data set's folder, or of record files, each a split.

    Compared are the fingerprints that the environment gives of a task (the whole problem; its solution where
    that is unique), of records the content. Exits 1 where two splits share one, else 0; what occurs twice
    within one split is told, and is no failure.

    \b
        coterie data leaks plan_path --tasks 1000
        coterie data leaks train.jsonl test.jsonl --key question
    """
    from coterie.cli.data_output import show_leaks
    from coterie.data import sources as files, split_leaks as marks_of
    from coterie.data.leaks import leaks as find

    names = [word for word in words if "=" not in word or Path(word).exists()]
    settings = [word for word in words if word not in names]
    if not names:
        raise UserError("nothing is named to look at", fix="name a recipe, a folder or record files")
    if len(names) > 1 and not all(map(files.is_file, names)):
        raise UserError("of several names each must be a record file", why=f"given: {', '.join(names)}")
    run, folder = _opened(names[0], settings, scale)
    if run is not None:
        if keys:
            raise UserError(
                "fields are for records", path="--key", why="the environment says what is content"
            )
        marks, scope = marks_of.task_marks(run, tasks or (TASKS if folder is None else None))
    else:
        marks, scope = marks_of.record_marks(names, folder, keys, tasks)
    found = find(marks)
    if as_json:
        print_json(
            {"leaking": bool(found.shared), **asdict(found), "there": scope.there, "notes": scope.notes}
        )
    else:
        show_leaks(found, scope.there, scope.notes)
    raise SystemExit(1 if found.shared else 0)
