"""Checkpoints that are whole or absent: atomic save, verified load.

    <run>/checkpoints/step-000040/manifest.json    format, step, meta, size and sha256 of every file
                                 /...              what the trainer wrote
                     /best.json                    a mark: {"step": 40}
                     /.tmp-...                     being written or removed; swept once its process is gone

A save goes to a hidden folder, is flushed to the disk, and is renamed: a kill at any moment leaves the
checkpoints of before, or those and the new one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.core.errors import RunFolderError, did_you_mean
from coterie.core.storage.atomic import TEMPORARY, locked, sync_file, sync_folder, write_atomic

if sys.platform != "win32":
    pass

log = logging.getLogger("coterie")

FORMAT = 1
"""Of the manifest; a larger one was written by a later Coterie and is refused, not skipped."""

MANIFEST = "manifest.json"
_STEP = re.compile(r"step-(\d{6,})")


_ASIDE = f"{TEMPORARY}old-"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One saved state: `path` holds the trainer's files, `meta` what the loop gave."""

    path: Path
    step: int
    meta: dict[str, Any] = field(default_factory=dict)


class _Damaged(Exception):
    """Why a checkpoint can't be trusted; names the file."""


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: `<run>/checkpoints`; made with the first save.
        keep: how many of the newest stay; marked ones stay besides.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, it is {keep}")
        self.folder, self.keep = folder, keep
        self._sweep()

    def save(self, step: int, write: Callable[[Path], None], meta: dict[str, Any]) -> Checkpoint:
        """Save a step as a whole or not at all, then prune.

        Args:
            write: puts files (in folders, if it likes) into the folder it is given.
            meta: JSON; comes back as JSON has it (tuples as lists). Floats come back exactly.

        Raises:
            RunFolderError: the disk is full or the folder can't be written; earlier checkpoints are intact.
            TypeError: meta is not JSON.
            Exception: whatever `write` raises; nothing of the attempt stays.
        """
        meta = json.loads(json.dumps(meta))
        target = self.folder / f"step-{step:06d}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._sweep(files=True)
            with self._temporary(target.name) as temporary:
                write(temporary)
                _write_manifest(temporary, step, meta)
                self._put(temporary, target)
        except OSError as error:
            raise RunFolderError(
                f"the checkpoint of step {step} could not be saved in {self.folder}",
                why=str(error),
                fix="free space or fix the permissions, then resume; the checkpoints before it are intact",
            ) from error
        self._prune()
        return Checkpoint(target, step, meta)

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, oldest first; verified by nobody yet."""
        if not self.folder.is_dir():
            return []
        found = (_STEP.fullmatch(entry.name) for entry in self.folder.iterdir() if entry.is_dir())
        return sorted(int(match[1]) for match in found if match is not None)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that verifies; damaged ones are skipped with a warning that names the file.

        Raises:
            RunFolderError: the newest was written by a later version of Coterie.
        """
        damaged: list[str] = []
        found: Checkpoint | None = None
        for step in reversed(self.steps()):
            try:
                found = self._verified(step)
                break
            except _Damaged as error:
                damaged.append(f"{self._path(step)}: {error}")
        for what in damaged:
            instead = f"using {found.path} instead" if found else "and no intact checkpoint is left"
            log.warning("damaged checkpoint %s; %s", what, instead)
        return found

    def load(self, step: int) -> Checkpoint:
        """The checkpoint of one step, verified.

        Raises:
            RunFolderError: there is none, or it is damaged.
        """
        if step not in self.steps():
            raise RunFolderError(f"no checkpoint of step {step} in {self.folder}", fix=self._known())
        try:
            return self._verified(step)
        except _Damaged as error:
            raise RunFolderError(
                f"the checkpoint of step {step} in {self.folder} is damaged",
                why=str(error),
                fix=self._known(),
            ) from error

    def mark(self, name: str, step: int) -> None:
        """Point `<name>.json` at a step, e.g. `best`; a marked checkpoint is never pruned.

        Raises:
            RunFolderError: that step has no checkpoint.
        """
        if not name.isidentifier():
            raise ValueError(f"a mark is named like a variable, not {name!r}")
        if step not in self.steps():
            raise RunFolderError(f"step {step} has no checkpoint to mark as '{name}'", fix=self._known())
        write_atomic(self.folder / f"{name}.json", json.dumps({"step": step}) + "\n")

    def marks(self) -> dict[str, int]:
        """name -> step. An unreadable mark is left out with a warning."""
        found: dict[str, int] = {}
        for path in sorted(self.folder.glob("*.json")):
            try:
                found[path.stem] = int(json.loads(path.read_text())["step"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.warning("the mark %s can't be read (%s); it protects no checkpoint", path, error)
        return found

    def marked(self, name: str) -> Checkpoint:
        """The checkpoint that a mark points at, verified.

        Raises:
            RunFolderError: no such mark, or its checkpoint is gone or damaged.
        """
        marks = self.marks()
        if name not in marks:
            raise RunFolderError(
                f"no checkpoint in {self.folder} is marked '{name}'", fix=did_you_mean(name, marks)
            )
        return self.load(marks[name])

    def truncate_after(self, step: int) -> None:
        """Remove the checkpoints of later steps, and marks on them.

        Whoever resumes from an older step calls this: else the next resume would find the future that was
        left behind, and take it for the newest.
        """
        for name, marked in self.marks().items():
            if marked > step:
                (self.folder / f"{name}.json").unlink()
        for later in self.steps():
            if later > step:
                self._remove(self._path(later))

    # ------------------------------------------------------------------------------------------ inside

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}"

    def _known(self) -> str:
        steps = self.steps()
        return "there are steps " + ", ".join(map(str, steps)) if steps else "there is no checkpoint yet"

    def _verified(self, step: int) -> Checkpoint:
        path = self._path(step)
        manifest = _read_manifest(path)
        if manifest["step"] != step:
            raise _Damaged(f"{MANIFEST} is of step {manifest['step']}")
        for name, wanted in manifest["files"].items():
            file = path / name
            if not file.is_file():
                raise _Damaged(f"{name} is missing")
            if (size := file.stat().st_size) != wanted["bytes"]:
                raise _Damaged(f"{name} has {size} bytes, not {wanted['bytes']}")
            if _sha256(file) != wanted["sha256"]:
                raise _Damaged(f"{name} does not have the checksum of its manifest")
        return Checkpoint(path, step, manifest["meta"])

    @contextmanager
    def _temporary(self, name: str) -> Iterator[Path]:
        """A locked, hidden folder that is gone afterwards, unless it was renamed meanwhile."""
        path = self.folder / f"{TEMPORARY}{name}-{secrets.token_hex(4)}"
        while True:
            path.mkdir(exist_ok=True)
            with locked(path) as mine:
                if not mine or not path.exists():
                    continue  # another process swept it before it was locked
                try:
                    yield path
                finally:
                    shutil.rmtree(path, ignore_errors=True)
                return

    def _put(self, temporary: Path, target: Path) -> None:
        """Rename into place; a checkpoint of that step which is there already makes room first."""
        if not target.exists():
            os.rename(temporary, target)
            sync_folder(self.folder)
            return
        aside = self.folder / f"{_ASIDE}{target.name}"
        shutil.rmtree(aside, ignore_errors=True)
        with locked(target):  # the lock goes along with the rename
            os.rename(target, aside)
            os.rename(temporary, target)  # killed before this line: `_sweep` puts the old one back
            sync_folder(self.folder)
        shutil.rmtree(aside, ignore_errors=True)

    def _sweep(self, files: bool = False) -> None:
        """Remove what a killed process left, and finish what it was replacing.

        A folder that a live process works in (a trainer, while we only read) is locked by it, and stays.
        Single files have no lock: only who saves, and so is the one writer, may take them away.
        """
        for entry in self.folder.glob(f"{TEMPORARY}*"):
            if entry.is_dir():
                with locked(entry, wait=False) as dead, suppress(OSError):
                    if dead:
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
        for step in self.steps():
            if step not in spared:
                self._remove(self._path(step))

    def _remove(self, path: Path) -> None:
        """Hide, then delete: a kill in between must not leave half a checkpoint under a good name."""
        hidden = self.folder / f"{TEMPORARY}{path.name}-{secrets.token_hex(4)}"
        os.rename(path, hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def _write_manifest(folder: Path, step: int, meta: dict[str, Any]) -> None:
    """Flush every file to the disk and write down what there is."""
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            sync_folder(path)
        else:
            sync_file(path)
            files[path.relative_to(folder).as_posix()] = {
                "bytes": path.stat().st_size,
                "sha256": _sha256(path),
            }
    body = {"format": FORMAT, "step": step, "meta": meta, "files": files}
    write_atomic(folder / MANIFEST, _text({**body, "sha256": _digest(body)}))


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        stated = manifest.pop("sha256")
    except FileNotFoundError as error:
        raise _Damaged(f"{MANIFEST} is missing") from error
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise _Damaged(f"{MANIFEST} can't be read ({error})") from error
    if stated != _digest(manifest):
        raise _Damaged(f"{MANIFEST} does not have its own checksum")
    if manifest["format"] > FORMAT:
        raise RunFolderError(
            f"the checkpoint {folder} was written by a later version of Coterie",
            why=f"its format is {manifest['format']}, this version reads up to {FORMAT}",
            fix="update coterie",
        )
    return dict(manifest)


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(_text(body).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
