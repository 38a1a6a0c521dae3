"""Checkpoints of finished or running runs: the newest, one by step, one by its mark; all verified."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Literal

from coterie.core.errors import RunFolderError, did_you_mean
from coterie.core.storage.checkpoint import (
    FORMAT,
    MANIFEST,
    Checkpoint,
    CheckpointWriter,
    file_sha256,
    manifest_digest,
)
from coterie.core.storage.run_folder import RunFolder

log = logging.getLogger("coterie")


class _Damaged(Exception):
    """A file of a checkpoint is missing or does not match the manifest."""


class CheckpointStore(CheckpointWriter):
    """The checkpoints of one run, to write and to read.

    Args:
        folder: `<run>/checkpoints`; made by the first save.
        keep: number of the newest checkpoints to keep, besides the marked ones.
    """

    def latest(self) -> Checkpoint | None:
        """The newest intact checkpoint, or None. A warning names the file of each damaged one.

        Raises:
            RunFolderError: the newest was written by a later version of Coterie.
        """
        damaged: list[str] = []
        intact: Checkpoint | None = None
        for step in reversed(self.steps()):
            try:
                intact = self._verified(step)
                break
            except _Damaged as error:
                damaged.append(f"{self._path(step)}: {error}")
        consequence = f"using {intact.path} instead" if intact else "and no intact checkpoint is left"
        for reason in damaged:
            log.warning("damaged checkpoint %s; %s", reason, consequence)
        return intact

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
            what = f"the checkpoint of step {step} in {self.folder} is damaged"
            raise RunFolderError(what, why=str(error), fix=self._known()) from error

    def marked(self, name: str) -> Checkpoint:
        """The checkpoint with a mark, verified.

        Raises:
            RunFolderError: there is no such mark, or its checkpoint is gone or damaged.
        """
        marks = self.marks()
        if name not in marks:
            what = f"no checkpoint in {self.folder} is marked '{name}'"
            raise RunFolderError(what, fix=did_you_mean(name, marks))
        return self.load(marks[name])

    def later(self, step: int) -> tuple[list[Path], list[Path]]:
        """The checkpoints of later steps, and the marks of later steps.

        A resume from an older step moves them away; otherwise the next would start from a later checkpoint.
        """
        marks = [self.folder / f"{name}.json" for name, marked in self.marks().items() if marked > step]
        return [self._path(later) for later in self.steps() if later > step], marks

    def _verified(self, step: int) -> Checkpoint:
        path = self._path(step)
        manifest = _read_manifest(path)
        if manifest["step"] != step:
            raise _Damaged(f"{MANIFEST} is of step {manifest['step']}")
        for name, expected in manifest["files"].items():
            file = path / name
            if not file.is_file():
                raise _Damaged(f"{name} is missing")
            if (size := file.stat().st_size) != expected["bytes"]:
                raise _Damaged(f"{name} has {size} bytes, not {expected['bytes']}")
            if file_sha256(file) != expected["sha256"]:
                raise _Damaged(f"{name} does not have the checksum in {MANIFEST}")
        return Checkpoint(path, step, manifest["meta"])


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        checksum = manifest.pop("sha256")
    except FileNotFoundError as error:
        raise _Damaged(f"{MANIFEST} is missing") from error
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise _Damaged(f"{MANIFEST} can't be read ({error})") from error
    if checksum != manifest_digest(manifest):
        raise _Damaged(f"{MANIFEST} does not match its checksum")
    if manifest["format"] > FORMAT:
        what = f"the checkpoint {folder} was written by a later version of Coterie"
        why = f"its format is {manifest['format']}, this version reads up to {FORMAT}"
        raise RunFolderError(what, why=why, fix="update coterie")
    return dict(manifest)


def state_saved_at(folder: RunFolder, step: int) -> tuple[dict[str, Any] | None, str]:
    """The run's state in the checkpoint of a step, without its weights, and what is wrong with its manifest.

    The state is None where there is no checkpoint of the step, or where it is damaged.
    """
    if step not in CheckpointStore(folder.checkpoints, keep=1).steps():
        return None, ""
    try:
        meta: dict[str, Any] = _read_manifest(folder.checkpoints / f"step-{step:06d}")["meta"]
    except _Damaged as error:
        return None, str(error)
    return meta, ""


def find_checkpoint(folder: Path, which: Literal["best", "latest"] | int) -> Checkpoint:
    """A run's checkpoint.

    Raises:
        RunFolderError: no run, or no sound checkpoint of that name.
    """
    run = RunFolder.open(folder)
    store = CheckpointStore(run.checkpoints, keep=1)
    if isinstance(which, int):
        return store.load(which)
    if which == "best" and "best" in store.marks():
        return store.marked("best")
    latest = store.latest()
    if latest is None:
        raise RunFolderError(f"{folder} has no sound checkpoint", fix="train it with `coterie run --resume`")
    return latest
