"""The lines of a rollout file, one at a time, and the digits of the numbers in them.

What a file holds may be much larger than the file. Its per-token numbers have the digits that a float32
needs, where they are float32.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

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


def shortened(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row with the digits that float32 needs, where its per-token numbers are exactly float32.

    A model's log-probs are, and as float64 half of a file would be digits that say nothing. `float32` names
    what was shortened: `calls` (their log-probs) and annotations.
    """
    calls, annotations = row.get("calls", ()), row.get("annotations", {})
    short = {name: digits for name, values in annotations.items() if (digits := _digits(values))}
    logprobs = [_digits(call["logprobs"]) for call in calls]
    changed: dict[str, Any] = {"annotations": {**annotations, **short}} if short else {}
    if calls and None not in logprobs:
        changed["calls"] = [{**call, "logprobs": of} for call, of in zip(calls, logprobs, strict=True)]
    return {**row, **changed, "float32": [*short, *changed.keys() & {"calls"}]} if changed else row


def _digits(values: Sequence[float]) -> list[float] | None:
    """The float64 numbers that have the nine digits of each float32; None: one of them is no float32."""
    exact = np.asarray(values, dtype=np.float64)
    if exact.ndim != 1:
        return None
    with np.errstate(over="ignore"):  # what is too large is no float32
        narrow = exact.astype(np.float32)
    if not np.array_equal(narrow, exact, equal_nan=True):
        return None
    return [float(f"{value:.9g}") for value in exact.tolist()]


def lengthened(row: dict[str, Any], names: Sequence[str]) -> None:
    """Undo `shortened` in place."""
    for name in names:
        if name == "calls":
            for call in row["calls"]:
                call["logprobs"] = _float32(call["logprobs"])
        else:
            row["annotations"][name] = _float32(row["annotations"][name])


def _float32(values: Sequence[float | None]) -> list[float | None]:
    """The numbers of float32 digits; null, which stands for NaN, stays null."""
    return [None if value is None else float(np.float32(value)) for value in values]
