"""Checkpoints: atomic save and verified load.

    <run>/checkpoints/step-000040/manifest.json    format, step, meta, size and sha256 of every file
                                 /...              the trainer's files
                     /best.json                    a mark: {"step": 40}
                     /.tmp-...                     being written or removed; swept after its process has ended

A save writes to a hidden folder, flushes it to the disk and renames it. A kill at any moment leaves the
earlier checkpoints intact, with or without the new one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.core.errors import RunFolderError
from coterie.core.storage.atomic import TEMPORARY, locked, sync_file, sync_folder, write_atomic, written

log = logging.getLogger("coterie")

FORMAT = 1
"""Version of the manifest. A larger one was written by a later Coterie and is an error."""
MANIFEST = "manifest.json"
_STEP = re.compile(r"step-(\d{6,})")
_ASIDE = f"{TEMPORARY}old-"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The saved state of a run after a step."""

    path: Path
    """Folder with the trainer's files."""
    step: int
    meta: dict[str, Any] = field(default_factory=dict)
    """State of the loop, as JSON."""


class CheckpointWriter:
    """Writes the checkpoints of one run; `api/checkpoints.py` reads them.

    Args:
        folder: `<run>/checkpoints`; made by the first save.
        keep: number of the newest checkpoints to keep, besides the marked ones.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self.folder, self.keep = folder, keep
        self._sweep()

    def save(self, step: int, write: Callable[[Path], None], meta: dict[str, Any]) -> Checkpoint:
        """Save a step as a whole or not at all, then prune.

        Args:
            write: writes the files into a folder; subfolders are allowed.
            meta: JSON values. Tuples come back as lists, floats exactly.

        Raises:
            WriteError: the disk is full or the folder can't be written; earlier checkpoints are intact.
            TypeError: meta is not JSON.
            Exception: any error of `write`; its files are removed.
        """
        meta = json.loads(json.dumps(meta))
        target = self._path(step)
        with written(f"the checkpoint of step {step} in {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._sweep(files=True)
            with self._temporary(target.name) as temporary:
                write(temporary)
                _write_manifest(temporary, step, meta)
                self._put(temporary, target)
            self._prune()
        return Checkpoint(target, step, meta)

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, oldest first; not verified."""
        return saved_steps(self.folder)

    def mark(self, name: str, step: int) -> None:
        """Mark the checkpoint of a step, e.g. as `best`. Marked checkpoints are never pruned.

        Raises:
            RunFolderError: the step has no checkpoint.
            ValueError: the name is not an identifier.
        """
        if not name.isidentifier():
            raise ValueError(f"the name of a mark must be an identifier, not {name!r}")
        if step not in self.steps():
            raise RunFolderError(f"step {step} has no checkpoint to mark as '{name}'", fix=self._known())
        write_atomic(self.folder / f"{name}.json", json.dumps({"step": step}) + "\n")

    def marks(self) -> dict[str, int]:
        """Marked steps by name. An unreadable mark is skipped with a warning."""
        steps: dict[str, int] = {}
        for path in sorted(self.folder.glob("*.json")):
            try:
                steps[path.stem] = int(json.loads(path.read_text())["step"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.warning("the mark %s can't be read (%s); it protects no checkpoint", path, error)
        return steps

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}"

    def _known(self) -> str:
        steps = self.steps()
        return f"there are steps {', '.join(map(str, steps))}" if steps else "there is no checkpoint yet"

    @contextmanager
    def _temporary(self, name: str) -> Iterator[Path]:
        """A locked, hidden folder, removed afterwards unless it was renamed."""
        path = self.folder / f"{TEMPORARY}{name}-{secrets.token_hex(4)}"
        while True:
            path.mkdir(exist_ok=True)
            with locked(path) as acquired:
                if not acquired or not path.exists():
                    continue  # another process swept it before it was locked
                try:
                    yield path
                finally:
                    shutil.rmtree(path, ignore_errors=True)
                return

    def _put(self, temporary: Path, target: Path) -> None:
        """Rename into place, and replace an earlier checkpoint of the step."""
        if not target.exists():
            os.rename(temporary, target)
            sync_folder(self.folder)
            return
        aside = self.folder / f"{_ASIDE}{target.name}"
        shutil.rmtree(aside, ignore_errors=True)
        with locked(target):  # the folder stays locked when it is renamed
            os.rename(target, aside)
            os.rename(temporary, target)  # after a kill before this line, `_sweep` restores the old one
            sync_folder(self.folder)
        shutil.rmtree(aside, ignore_errors=True)

    def _sweep(self, files: bool = False) -> None:
        """Remove the temporary folders of killed processes, and restore a checkpoint that one was replacing.

        A live process locks its temporary folders, so they stay. Single files have no lock: `files` is for
        the process that saves, the only writer.
        """
        for entry in self.folder.glob(f"{TEMPORARY}*"):
            if entry.is_dir():
                with locked(entry, wait=False) as acquired, suppress(OSError):
                    if acquired:
                        self._clear(entry)
            elif files:
                entry.unlink(missing_ok=True)

    def _clear(self, entry: Path) -> None:
        old = entry.name.removeprefix(_ASIDE)
        if entry.name.startswith(_ASIDE) and not (self.folder / old).exists():
            os.rename(entry, self.folder / old)
        else:
            shutil.rmtree(entry, ignore_errors=True)

    def _prune(self) -> None:
        spared = set(self.steps()[-self.keep :]) | set(self.marks().values())
        for path in (self._path(step) for step in self.steps() if step not in spared):
            # Hide, then delete: a kill in between must not leave half a checkpoint under its name.
            hidden = self.folder / f"{TEMPORARY}{path.name}-{secrets.token_hex(4)}"
            os.rename(path, hidden)
            shutil.rmtree(hidden, ignore_errors=True)


def saved_steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint in `<run>/checkpoints`, oldest first; not verified."""
    if not folder.is_dir():
        return []
    matches = (_STEP.fullmatch(entry.name) for entry in folder.iterdir() if entry.is_dir())
    return sorted(int(match[1]) for match in matches if match is not None)


def _write_manifest(folder: Path, step: int, meta: dict[str, Any]) -> None:
    """Flush every file to the disk, then write their sizes and checksums."""
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            sync_folder(path)
        else:
            sync_file(path)
            name = path.relative_to(folder).as_posix()
            files[name] = {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
    body = {"format": FORMAT, "step": step, "meta": meta, "files": files}
    write_atomic(folder / MANIFEST, manifest_text({**body, "sha256": manifest_digest(body)}))


def manifest_text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def manifest_digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(manifest_text(body).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
