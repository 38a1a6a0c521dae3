"""Known data sets in `coterie data prepare`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError


def is_known(source: str) -> bool:
    """Whether a source is the name of a known set, and no file or folder here."""
    from coterie.data.known_sets import known_sets

    return not Path(source).exists() and source in known_sets()


def check_spelling(source: str) -> None:
    """Refuse a name that is nearly that of a known set, before it is looked for on the Hub.

    Raises:
        UserError: it is.
    """
    from coterie.data.known_sets import known_sets

    if "/" in source or Path(source).exists():
        return
    for name in difflib.get_close_matches(source.lower(), known_sets(), n=1, cutoff=0.8):
        raise UserError(
            f"there is no set '{source}'",
            fix=f"did you mean '{name}'? A set of the Hub has its whole id, OWNER/NAME",
        )


def prepare_set(
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
    from coterie.data.known_sets import records_of_set
    from coterie.data.sources import data_table, write_records
    from coterie.data.task_files import claim, existing_files, write_manifest
    from coterie.recipes.layers import parse_override
    from coterie.recipes.merging import Layers

    for option, value in options.items():
        if value:
            raise UserError(
                f"'{name}' is a known set, whose records and splits are fixed",
                path="--" + {"keep": "keep-splits"}.get(option, option.replace("_", "-")),
                fix=f"leave it out; settings are written as train='test[:100]'; or prepare a file of {name}",
            )
    existing_files(out, force=force)
    layers = Layers()
    for setting in settings:
        layers.add(parse_override(setting), "override")
    table = layers.table
    records, notes = records_of_set(name, table)
    claim(out, force=force)
    files: dict[str, tuple[Path, int]] = {}
    for split, rows in records.items():
        path = out / f"{split}.jsonl"
        files[split] = path, write_records(path, rows)
    facts = {
        "made_by": "coterie data prepare",
        "version": __version__,
        "source": name,
        "settings": table,
    }
    manifest = write_manifest(out, facts, files)
    paste = data_table({split: path for split, (path, _) in files.items()})
    return {**manifest, "paste": {"data": paste}}, notes
