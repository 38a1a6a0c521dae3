"""What happens to a run's folder where a start fails, or where the disk is full."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coterie.core.errors import WriteError
from coterie.core.storage.atomic import written
from coterie.core.storage.checkpoint import CheckpointStore, saved_steps
from coterie.core.storage.run_folder import RunFolder

log = logging.getLogger("coterie")


@contextmanager
def new_run(path: Path, config_text: str) -> Iterator[RunFolder]:
    """The locked folder of a new run. A start that fails before its first checkpoint leaves nothing in it.

    Only what the start made is removed. A folder that was there before stays, with what else is in it.

    Raises:
        RunFolderError: the folder holds a run, or another process is training in it.
        WriteError: the folder can't be written.
    """
    folder, existed = RunFolder(path), path.exists()
    with written(f"the run folder {path}"):
        path.mkdir(parents=True, exist_ok=True)
    with folder.claimed():
        abandoned = folder.unused and folder.config.exists()
        if abandoned:
            log.warning("%s was stopped before its first checkpoint: starting over", path)
        files = (folder.metrics, folder.config, *folder.parts)
        made = [file for file in files if abandoned or not file.exists()]
        try:
            RunFolder.create(path, config_text)
            yield folder
        except BaseException:
            if not saved_steps(folder.checkpoints):
                _remove(made if existed else [*made, path])
            raise


def _remove(paths: list[Path]) -> None:
    """Remove files, and folders that are empty; a folder that holds anything stays."""
    for path in paths:
        with suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def resumable(folder: RunFolder, store: CheckpointStore) -> Iterator[None]:
    """A context in which an error of the disk says from which checkpoint the run can be resumed.

    Raises:
        WriteError: what the disk refused, with the newest intact checkpoint.
    """
    try:
        yield
    except WriteError as error:
        newest = store.latest()
        then = (
            "start again: no step was saved"
            if newest is None
            else f"resume with `coterie run --resume {folder.path}`: "
            f"the checkpoint of step {newest.step} is intact, and training goes on from it"
        )
        fix = f"free space on the disk or fix the permissions, then {then}"
        raise WriteError(error.what, why=error.why, fix=fix) from error.__cause__
