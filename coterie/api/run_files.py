"""How a run's folder is made and locked, also where a start fails or the disk is full."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coterie.api.checkpoints import CheckpointStore
from coterie.api.run_record import RECORD, RunRecord
from coterie.core.errors import RunFolderError, WriteError
from coterie.core.storage.atomic import TEMPORARY, locked, write_atomic, written
from coterie.core.storage.checkpoint import saved_steps
from coterie.core.storage.run_folder import RunFolder

log = logging.getLogger("coterie")


def check_out(path: Path | str | None) -> None:
    """Refuse a folder that can't be made since a file is in its place, before anything is loaded.

    Raises:
        RunFolderError: the path, or one above it, is a file.
        WriteError: the path can't be looked at, e.g. its name is too long.
    """
    folder, fix = Path(path or "."), "choose another folder, or move it"
    with written(f"the run folder {folder}"):
        for part in (folder, *folder.parents):
            if part.is_file():
                why = "a run is a folder of files" if part == folder else f"{folder} would be in it"
                raise RunFolderError(f"--out: {part} is a file", why=why, fix=fix)


def create_run(path: Path, config_text: str, record: RunRecord | None = None) -> RunFolder:
    """Make the folder of a new run; one that was killed before its first checkpoint may be there.

    Raises:
        RunFolderError: the folder holds a run already.
        WriteError: the folder can't be written.
    """
    folder = RunFolder(path)
    with written(f"the run folder {path}"):
        if (folder.config.exists() or folder.metrics.exists()) and not _is_unused(folder):
            why = "a new run would mix its rows with the old one's"
            fix = f"resume the run (`coterie run --resume {path}`), or choose another folder"
            raise RunFolderError(f"{path} holds a run already", why=why, fix=fix)
        for part in _parts(folder):
            part.mkdir(parents=True, exist_ok=True)
        if record is not None:
            record.write(path)
        write_atomic(folder.config, config_text)  # last: it makes the folder a run
    return folder


def _parts(folder: RunFolder) -> tuple[Path, ...]:
    """The folders that every run has; they are made before the configuration."""
    return folder.rollouts, folder.checkpoints, folder.eval


def _is_unused(folder: RunFolder) -> bool:
    """Whether `create_run` made the folder, and neither a checkpoint nor a row nor a file followed."""
    parts = _parts(folder)
    return (
        all(part.is_dir() for part in parts)
        and all(entry.name.startswith(TEMPORARY) for part in parts for entry in part.iterdir())
        and not (folder.metrics.exists() and folder.metrics.stat().st_size)
    )


@contextmanager
def claimed(folder: RunFolder) -> Iterator[RunFolder]:
    """Lock the folder of a run during training; yields it. The lock ends with the process.

    Raises:
        RunFolderError: another live process has the lock.
    """
    with locked(folder.path, wait=False) as acquired:
        if not acquired:
            why = "two would overwrite each other's checkpoints and mix their rows"
            fix = "wait for the process or stop it, or choose another folder"
            raise RunFolderError(f"another process is training in {folder.path}", why=why, fix=fix)
        yield folder


@contextmanager
def new_run(path: Path, config_text: str, record: RunRecord | None = None) -> Iterator[RunFolder]:
    """The locked folder of a new run. A start that fails before its first checkpoint leaves nothing in it.

    Only what the start made is removed. A folder that was there before stays, with what else is in it.

    Raises:
        RunFolderError: the folder holds a run, or another process is training in it.
        WriteError: the folder can't be written.
    """
    folder, existed = RunFolder(path), path.exists()
    with written(f"the run folder {path}"):
        path.mkdir(parents=True, exist_ok=True)
    with claimed(folder):
        abandoned = _is_unused(folder) and folder.config.exists()
        if abandoned:
            log.warning("%s was stopped before its first checkpoint: starting over; no step is lost", path)
        files = (folder.metrics, folder.config, path / RECORD, *_parts(folder))
        made = [file for file in files if abandoned or not file.exists()]
        try:
            create_run(path, config_text, record)
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
        raise WriteError(error.what, why=error.why, then=then) from error.__cause__
