"""The contents of files that settings name, as digests."""

from __future__ import annotations

import glob
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from coterie.compose.named_files import DATASET, FUNCTION, MODEL, WEIGHTS, NamedFile
from coterie.compose.settings import Settings
from coterie.core.plugins import Table
from coterie.core.storage.checkpoint import file_sha256

BLOCK, BLOCKS = 2**20, 64
"""A larger file of a model is read in so many blocks of so many bytes, evenly spaced."""


def contents(settings: Settings) -> dict[str, dict[str, Any]]:
    """What each setting that names a file names, by the setting's path.

    Returns:
        {path, sha256} of a file, a folder, the files of a pattern, or the module of a function; {id,
        revision} of what a hub has. What doesn't exist is left out, and so is the code of installed packages,
        which have versions, and the weights of a `from`, which only the start of a run reads.
    """
    known = {}
    for path, named in settings.files.items():
        place = place_of(named)
        if place is not None:
            known[path] = {"path": place, "sha256": sha256_of(place, named.form)}
        elif named.form in (DATASET, MODEL):
            known[path] = {"id": named.text, "revision": _beside(settings.table, named.keys, "revision")}
    return known


def place_of(named: NamedFile) -> str | None:
    """The absolute path of what is named, a pattern as it is; None: nothing to be read is there."""
    if named.form == WEIGHTS:
        return None
    if named.form == FUNCTION:
        module, colon, _ = named.text.partition(":")
        file = module_file(module) if colon else None
        return os.path.abspath(file) if file is not None and not _installed(file) else None
    text = os.path.expanduser(named.text)
    there = os.path.isdir(text) if named.form in (DATASET, MODEL) else os.path.exists(text) or glob.glob(text)
    return os.path.abspath(text) if there else None


def sha256_of(place: str, form: str) -> str:
    """The digest of a file's bytes; of a folder or a pattern, that of its files' names and digests.

    Hidden files and a model's card don't count. Of a model's large files, the size and blocks of the bytes
    are read.
    """
    path = Path(place)
    if path.is_file():
        return _of_file(path, form)
    root = path if path.is_dir() else path.parent
    files = _below(path) if path.is_dir() else sorted(map(Path, glob.glob(place, recursive=True)))
    digest = hashlib.sha256()
    for file in (file for file in files if file.is_file() and (form, file.name) != (MODEL, "README.md")):
        digest.update(f"{os.path.relpath(file, root)}\0{_of_file(file, form)}\n".encode())
    return digest.hexdigest()


def by_content(named: Iterable[NamedFile], table: Table) -> Table:
    """The table with digests in place of the paths of data, prompts and models that exist."""
    for file in named:
        with suppress(OSError):
            if file.form != FUNCTION and (place := place_of(file)) is not None:
                table = replaced(table, file.keys, f"sha256 {sha256_of(place, file.form)}")
    return table


def replaced(table: Any, keys: Sequence[str | int], value: Any) -> Any:
    """A copy of a nested table with another value at a place; a table without the place as it is."""
    if not keys:
        return value
    if isinstance(table, dict) and keys[0] not in table:
        return table
    copied: Any = dict(table) if isinstance(table, dict) else list(table)
    copied[keys[0]] = replaced(table[keys[0]], keys[1:], value)
    return copied


def module_file(module: str, folders: Sequence[str] = ()) -> Path | None:
    """The file of a module, which is not imported; None: it isn't found.

    Args:
        folders: searched before the Python path; else the working folder is.
    """
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded is not None:
        return Path(loaded)
    places: Sequence[str] | None = [*(folders or [os.getcwd()]), *sys.path]
    spec = None
    for part in module.split("."):
        # By the last part alone: the full name would make the finder look for its packages in sys.modules.
        spec = PathFinder.find_spec(part, places) if places is not None else None
        if spec is None:
            return None
        places = spec.submodule_search_locations
    return Path(spec.origin) if spec is not None and spec.origin and spec.has_location else None


def _installed(file: Path) -> bool:
    """Whether a module is of Coterie, of Python, or of an installed package."""
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    ours = Path(__file__).resolve().parents[1]
    return file.resolve().is_relative_to(ours) or any(file.is_relative_to(folder) for folder in folders)


def _of_file(file: Path, form: str) -> str:
    state = file.stat()
    sampled = form == MODEL and state.st_size > BLOCK * BLOCKS
    if state.st_size <= BLOCK:
        return file_sha256(file)
    return _of_large(str(file), sampled, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


@lru_cache(maxsize=1024)
def _of_large(file: str, sampled: bool, size: int, *changed: int) -> str:
    """The digest of a large file, read once a process as long as the file stays as it is."""
    if not sampled:
        return file_sha256(Path(file))
    digest = hashlib.sha256(f"{size}\n".encode())
    with open(file, "rb") as opened:
        for index in range(BLOCKS):
            opened.seek((size - BLOCK) * index // (BLOCKS - 1))
            digest.update(opened.read(BLOCK))
    return digest.hexdigest()


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        yield from (Path(place, name) for name in sorted(names) if not name.startswith("."))


def _beside(table: Any, keys: Sequence[str | int], name: str) -> Any:
    for key in keys[:-1]:
        table = table[key]
    return table.get(name) if isinstance(table, dict) else None
