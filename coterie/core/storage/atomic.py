"""Atomic writes of files, and folder locks that end with their process."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coterie.core.errors import UserError, WriteError

if sys.platform != "win32":
    import fcntl

TEMPORARY = ".tmp-"
"""Prefix of the names of files and folders that are being written or removed."""
DISK = re.compile(
    r"os error \d+|no space left|quota exceeded|file too large|read-only file|permission denied|"
    r"write failed|unexpected pos",
    re.IGNORECASE,
)
"""What libraries that write files (safetensors, torch) say where they raise no OSError."""


@contextmanager
def written(what: object) -> Iterator[None]:
    """Turn a failure of the disk into an error of the user. Other errors pass.

    Raises:
        WriteError: `what` can't be written.
    """
    try:
        yield
    except Exception as error:
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        why = error.why if isinstance(error, UserError) else str(cause)
        of_disk = isinstance(cause, OSError) or DISK.search(why)
        if not (isinstance(error, WriteError) or (of_disk and not isinstance(error, UserError))):
            raise
        raise WriteError(f"{what} can't be written", why=why) from cause


def write_atomic(path: Path, data: bytes | str) -> None:
    """Replace a file's content as a whole: a reader sees the old or the new one, also after a crash.

    Raises:
        WriteError: e.g. the disk is full; the old file is intact and the temporary file is removed.
    """
    raw = data.encode() if isinstance(data, str) else data
    temporary = path.parent / f"{TEMPORARY}{path.name}-{secrets.token_hex(4)}"
    with written(path):
        try:
            # Not tempfile: its mode 0600 would hide the files of a shared run from other users.
            with open(temporary, "xb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Flush a file's content to the disk."""
    mode = "rb+" if sys.platform == "win32" else "rb"  # POSIX syncs read-only files too
    with open(path, mode) as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Flush a folder's names to the disk, except on network file systems that can't."""
    if sys.platform == "win32":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[bool]:
    """Lock a folder; yields whether this process has the lock: none has that of a missing folder. The system
    frees it when the process ends.
    """
    if sys.platform == "win32":
        yield True
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        acquired = True
    except BlockingIOError:
        acquired = False
    except OSError:  # a file system without locks: no other process can be detected
        acquired = True
    try:
        yield acquired
    finally:
        os.close(handle)
