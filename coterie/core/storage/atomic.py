"""Files that appear whole or not at all, and locks that end with their process."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

TEMPORARY = ".tmp-"
"""How the names of files and folders begin that are being written or removed."""


def write_atomic(path: Path, data: bytes | str) -> None:
    """Replace a file's content as a whole: whoever reads it sees the old or the new, also after a crash.

    Raises:
        OSError: e.g. the disk is full; the old file is untouched and nothing temporary stays behind.
    """
    raw = data.encode() if isinstance(data, str) else data
    temporary = path.parent / f"{TEMPORARY}{path.name}-{secrets.token_hex(4)}"
    try:
        # Not tempfile: its mode 0600 would hide a shared run from one's colleagues.
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
    with open(
        path, "rb+" if sys.platform == "win32" else "rb"
    ) as file:  # elsewhere, read-only files sync too
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make names durable. Some network file systems can't; there the rename has to do."""
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
    """Lock a folder; yields whether it is ours. However the process dies, the system frees the lock."""
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
        mine = True
    except BlockingIOError:
        mine = False
    except OSError:  # a file system without locks: there, nobody can be told from the dead
        mine = True
    try:
        yield mine
    finally:
        os.close(handle)
