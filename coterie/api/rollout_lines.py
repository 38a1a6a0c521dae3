"""The lines of a rollout file, one at a time: what a file holds may be much larger than the file."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coterie.core.errors import RunFolderError

MAGIC = b"\x1f\x8b"
"""The first bytes of a gzip file."""
PIECE = 1 << 20
"""Bytes that are decompressed at once."""
LONGEST = 1 << 29
"""Bytes of the longest line that is read. A row has one action; one of a million tokens takes 30 MB."""


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a file of JSON objects, gzipped, or plain as `gunzip` leaves it.

    What can't be a row (a blank line, a longer one than `LONGEST`) is refused before the rest is read.

    Raises:
        RunFolderError: the file is damaged, or no regular file.
        OSError: it can't be opened.
    """
    with open_regular(path) as raw:
        is_gzip = raw.peek(len(MAGIC)).startswith(MAGIC)
        file: io.BufferedReader[Any] = raw
        if is_gzip:
            file = io.BufferedReader(gzip.GzipFile(fileobj=raw), PIECE)
        try:
            while line := _line(path, file):
                yield line
        except (OSError, EOFError, zlib.error) as error:
            raise damaged(path, str(error)) from error


def _line(path: Path, file: io.BufferedReader[Any]) -> bytes:
    """The next line, with its newline; empty at the end of the file."""
    pieces = [file.readline(PIECE)]
    if pieces[0] and not pieces[0].lstrip().startswith(b"{"):
        raise damaged(path, "a line is no JSON object")
    size = len(pieces[0])
    while not pieces[-1].endswith(b"\n") and (piece := file.readline(PIECE)):
        pieces.append(piece)
        size += len(piece)
        if size > LONGEST:
            raise damaged(path, f"a line has more than {LONGEST:,} bytes")
    return b"".join(pieces)


def open_regular(path: Path) -> io.BufferedReader[Any]:
    """Open a file to read. A pipe, a socket or a device is refused: it may never end.

    Raises:
        RunFolderError: it is no regular file.
        OSError: it can't be opened.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise irregular(path)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # it may be another one by now
    file = io.BufferedReader(io.FileIO(handle), PIECE)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise irregular(path)
    return file


def irregular(path: Path) -> RunFolderError:
    """The error about a pipe, a socket, a device or a folder in place of a file."""
    return RunFolderError(
        f"{path} is no regular file",
        why="it is a pipe, a socket, a device or a folder, and those are not read",
        fix="move it out of the run folder",
    )


def damaged(path: Path, why: str) -> RunFolderError:
    """The error about a file whose content is not what was written."""
    return RunFolderError(
        f"{path} is damaged",
        why=f"{why}; it was changed on the disk or copied in part",
        fix="restore it from a copy",
    )
