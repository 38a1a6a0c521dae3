"""Relative paths of a configuration: they are of the file that names them, else of the working folder."""

from __future__ import annotations

import glob
import logging
import os
import re
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from coterie.compose.contents import by_content, module_file, replaced
from coterie.compose.named_files import DATASET, FUNCTION, MODEL, WEIGHTS, NamedFile
from coterie.compose.policies import run_config
from coterie.compose.settings import settings_of
from coterie.core.config import Resolved
from coterie.core.errors import CoterieError
from coterie.core.plugins import Table

log = logging.getLogger("coterie")
_ADDRESS = re.compile(r"(.+?)((?:@(?:best|latest|\d+))?(?::[^:/\\@]+)?)")
_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_PATTERN = re.compile(r"[\w./-]*[*?\[][\w./*?\[\]-]*")
_LONGEST = 4096
"""Characters of a path; a longer text is none."""


class FileText(str):
    """A text of a configuration's file."""

    folder: str
    """The file's."""


def written(value: Any, folder: Path) -> Any:
    """The value of a file in this folder; its texts know the folder."""
    if isinstance(value, Mapping):
        return {key: written(inner, folder) for key, inner in value.items()}
    if isinstance(value, list):
        return [written(inner, folder) for inner in value]
    if type(value) is not str:
        return value
    text = FileText(value)
    text.folder = os.path.abspath(folder)
    return text


def plain(value: Any) -> Any:
    """The value with texts that know no file."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return str(value) if isinstance(value, FileText) else value


def located(resolved: Resolved, layers: Table) -> Resolved:
    """The configuration with absolute paths of what exists; its digest reads the contents.

    Args:
        layers: the merged layers, whose texts know their files.
    """
    if not _may_name(layers):
        return resolved
    try:
        named = settings_of(resolved.config).files.values()
    except CoterieError:  # of a plugin or its settings; it is told when the component is made
        return resolved
    table, moved = resolved.table, []
    for file in named:
        text = _located(file, getattr(_at(layers, file.keys), "folder", None))
        moved.append(NamedFile(file.keys, text, file.form))
        if text != file.text:
            table = replaced(table, file.keys, text)
    config = resolved.config if table is resolved.table else run_config(table)
    return Resolved(resolved.name, config, table, resolved.origins, partial(by_content, tuple(moved)))


def _located(named: NamedFile, folder: str | None) -> str:
    """The absolute path of a text; the text itself where nothing is there, or it is the id of a hub."""
    if named.form == FUNCTION:
        _make_importable(named.text, folder)
        return named.text
    match = _ADDRESS.fullmatch(named.text) if named.form == WEIGHTS else None
    text, suffix = match.groups() if match is not None else (named.text, "")
    if match is not None and os.path.isdir(named.text):  # a folder may have an @ in its name
        text, suffix = named.text, ""
    if os.path.isabs(text) or text.startswith("~"):
        return named.text
    places = [os.path.abspath(os.path.join(place, text)) for place in (folder, os.getcwd()) if place]
    there = [place for place in dict.fromkeys(places) if _exists(place, named.form)]
    if len(there) > 1:
        log.warning(
            "%s: %s is taken from the folder of the file that names it, %s, not from the working folder",
            *(named.path, text, folder),
        )
    return there[0] + suffix if there else named.text


def _exists(place: str, form: str) -> bool:
    if form in (DATASET, MODEL, WEIGHTS):
        return os.path.isdir(place)
    return os.path.exists(place) or bool(glob.glob(place, recursive=True))


def _make_importable(text: str, folder: str | None) -> None:
    """Let a module beside the file that names it be imported, where no other place has it."""
    module, colon, _ = text.partition(":")
    known = not (folder and colon) or folder in sys.path or module_file(module) is not None
    if not known and module_file(module, [str(folder)]) is not None:
        sys.path.append(str(folder))


def _may_name(value: Any) -> bool:
    """Whether a text of a table may name a file: plugins aren't asked where none does."""
    if isinstance(value, Mapping):
        return any(map(_may_name, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_may_name, value))
    if not isinstance(value, str) or not value or "\n" in value or len(value) > _LONGEST:
        return False
    folder, _, _ = value.partition("@")
    places = [os.path.join(place, folder) for place in (getattr(value, "folder", ""), "")]
    return (
        _MODULE.fullmatch(value) is not None
        or any(map(os.path.exists, places))
        or (_PATTERN.fullmatch(value) is not None and any(map(glob.glob, places)))
    )


def _at(table: Any, keys: tuple[str | int, ...]) -> Any:
    """The value at a place of the merged layers; None: it is a default."""
    for key in keys:
        try:
            table = table[key]
        except (KeyError, IndexError, TypeError):
            return None
    return table
