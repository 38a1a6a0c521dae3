"""Checkpoints of finished or running runs, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from coterie.core.errors import RunFolderError
from coterie.core.storage.checkpoint import Checkpoint, CheckpointStore
from coterie.core.storage.run_folder import RunFolder


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
