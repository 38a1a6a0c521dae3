"""`coterie data prepare`: records split by content, and known data sets."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from coterie.cli.data_show import data_out_option, force_option, show_files
from coterie.cli.options import json_option, plugin_option, settings_table
from coterie.cli.output import print_json, table
from coterie.core.errors import UserError
from coterie.data.task_files import (
    PreparedSplits,
    SplitRule,
    claim,
    existing_files,
    rename_fields,
    split_records,
    write_manifest,
)


@click.command(short_help="Split records by content and drop duplicates.")
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
    from coterie.data.sources import known_sets

    if not source.strip():
        raise UserError("SOURCE is empty", fix="name a file, a set of the Hub as OWNER/NAME, or a known set")
    if not Path(source).exists() and source in known_sets():
        given = {"key": keys, "rename": renames, **options}
        manifest, notes = _prepare_set(source, settings, given, out, force=force)
        if as_json:
            print_json({**manifest, "notes": notes})
        else:
            show_files(out, manifest, notes)
        return
    _check_spelling(source)
    if settings:
        raise UserError(
            f"{source} takes no settings such as '{settings[0]}'",
            why="they are for known sets, by name",
            fix="use the options of this command; `coterie plugins --kind data_source` lists the sets",
        )
    prepared, facts, notes = _prepared(source, out, keys, renames, force, **options)
    manifest = _write_splits(out, prepared.splits, facts, force=force)
    if as_json:
        print_json({**manifest, "notes": notes})
        return
    rows = [[name.replace("_", " "), f"{count:,}"] for name, count in _counts(prepared).items()]
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
    from coterie.data import sources

    existing_files(out, force=force)
    body, kept, notes = sources.read_source(source, keep=keep, subset=subset, revision=revision)
    rule, names = _split_rule(keys, kept, **options), _renamings(renames)
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
        "counts": _counts(prepared),
    }
    return prepared, facts, notes


def _write_splits(
    out: Path, splits: Mapping[Any, Any], facts: dict[str, Any], *, force: bool
) -> Mapping[str, Any]:
    """Write a JSONL file for each split, and the manifest."""
    from coterie.data.sources import write_records

    claim(out, force=force)
    files = {}
    for split, records in splits.items():
        path = out / f"{split}.jsonl"
        files[split] = path, write_records(path, records)
    return write_manifest(out, facts, files)


# --------------------------------------------------------------------------------------- options, and counts


def _split_rule(
    keys: tuple[str, ...], kept: Iterable[str], limit: int | None, **shares: float | None
) -> SplitRule:
    """The rule by which records are split: shares are 0.1 by default, and 0 for splits that are kept.

    Args:
        keys: fields that are the content.
        kept: splits of the source that are kept whole.
        shares: `val_share` and `test_share`; None where the option is absent.

    Raises:
        UserError: a share is given for a split that is kept, or none is left for training.
    """
    for name in kept:
        if shares[f"{name}_share"] is not None:
            raise UserError(
                f"the source's {name} split is kept whole",
                path=f"--{name}-share",
                fix=f"leave --{name}-share out, or --keep-splits",
            )
        shares[f"{name}_share"] = 0.0
    given = {name: 0.1 if value is None else value for name, value in shares.items()}
    if sum(given.values()) >= 1:
        raise UserError("--val-share and --test-share leave nothing for training", fix="lower one of them")
    return SplitRule(keys=keys, limit=limit, **given)


def _renamings(pairs: Sequence[str]) -> dict[str, str]:
    """`OLD=NEW` pairs as a mapping from old to new names.

    Raises:
        UserError: an argument is not such a pair, or a name occurs in two of them.
    """
    names: dict[str, str] = {}
    for pair in pairs:
        old, _, new = pair.partition("=")
        if not old or not new or old in names or new in names.values():
            raise UserError(
                f"'{pair}' renames no field",
                path="--rename",
                why="it is OLD=NEW, and each name occurs once",
                fix="e.g. --rename problem=question",
            )
        names[old] = new
    return names


def _counts(prepared: PreparedSplits) -> dict[str, int]:
    """Numbers of records that were read, dropped and written, by name."""
    return {
        "read": prepared.read,
        "duplicates_dropped": prepared.duplicates,
        **{f"dropped_from_{split}_being_in_{other}": n for (split, other), n in prepared.shared.items()},
        "beyond_the_limit": prepared.over_limit,
        **{split: len(records) for split, records in prepared.splits.items()},
    }


# ------------------------------------------------------------------------------------------ known data sets


def _check_spelling(source: str) -> None:
    """Refuse a name that is nearly that of a known set, before it is looked for on the Hub.

    Raises:
        UserError: it is.
    """
    from coterie.data.sources import known_sets

    if "/" in source or Path(source).exists():
        return
    for name in difflib.get_close_matches(source.lower(), known_sets(), n=1, cutoff=0.8):
        raise UserError(
            f"there is no set '{source}'",
            fix=f"did you mean '{name}'? A set of the Hub has its whole id, OWNER/NAME",
        )


def _prepare_set(
    name: str, settings: Sequence[str], options: Mapping[str, Any], out: Path, *, force: bool
) -> tuple[Mapping[str, Any], list[str]]:
    """Write a known set: a JSONL file for each split, and the manifest.

    Args:
        settings: of the data source, as `key=value`.
        options: the command's options that are for other sources.

    Returns:
        the manifest, and notes for the user.

    Raises:
        UserError: an option is not for known sets, a setting is wrong, or the set can't be read.
    """
    from coterie import __version__
    from coterie.data.sources import data_table, records_of_set

    for option, value in options.items():
        if value:
            raise UserError(
                f"'{name}' is a known set, whose records and splits are fixed",
                path="--" + {"keep": "keep-splits"}.get(option, option.replace("_", "-")),
                fix=f"leave it out; settings are written as train='test[:100]'; or prepare a file of {name}",
            )
    existing_files(out, force=force)
    table = settings_table(settings)
    records, notes = records_of_set(name, table)
    facts = {"made_by": "coterie data prepare", "version": __version__, "source": name, "settings": table}
    manifest = _write_splits(out, records, facts, force=force)
    paste = data_table({split: out / f"{split}.jsonl" for split in records})
    return {**manifest, "paste": {"data": paste}}, notes
