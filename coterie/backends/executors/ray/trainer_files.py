"""Files of a trainer host: checkpoints and exports, whose folders are on the node of the run's process.

Where both processes see one folder, files are written and read there; else they travel in pieces.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

PIECE = 64 * 2**20
"""Bytes of a file that travel at once."""
Listed = dict[str, int]
"""Sizes of files by their names in a folder."""


class Stated(NamedTuple):
    """A file of the run's process. A host that has the same at this path sees it."""

    path: str
    size: int
    changed: int
    """When, in nanoseconds."""


def stated(path: Path) -> Stated:
    """What a file is known by."""
    known = path.stat()
    return Stated(str(path.resolve()), known.st_size, known.st_mtime_ns)


class HostFiles:
    """The files of a trainer host that aren't the run's."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        """A folder of this process, until `clear`."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="coterie-trainer-"))
        return self._folder

    def clear(self) -> None:
        """Remove it."""
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def target(self, folder: Path, mark: Stated) -> Path:
        """Where to write: `folder`, if this process sees the mark in it; else a folder of this process."""
        return folder if sees(mark) else self.folder

    def listed(self, folder: Path) -> Listed:
        """The files in a folder."""
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}

    def read(self, name: str, start: int, size: int) -> bytes:
        """A piece of a file."""
        with (self.folder / name).open("rb") as file:
            file.seek(start)
            return file.read(size)

    def take(self, files: Mapping[str, Stated | bytes]) -> list[str]:
        """Take files by their contents, or where they are; returns the names of those that aren't there."""
        self.clear()
        missing = []
        for name, file in files.items():
            here = self.folder / name
            here.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(file, bytes):
                here.write_bytes(file)
            elif sees(file):
                os.symlink(file.path, here)
            else:
                here.touch()
                missing.append(name)
        return missing

    def append(self, name: str, piece: bytes) -> None:
        """Write the next piece of a file."""
        with (self.folder / name).open("ab") as file:
            file.write(piece)


def sees(file: Stated) -> bool:
    """Whether this process sees a file of the process that has stated it."""
    try:
        return stated(Path(file.path)) == file
    except OSError:
        return False


# ------------------------------------------------------------------------------------------ the run's process

FileCall = Callable[..., Any]
"""Calls a method of the `HostFiles` of a trainer host, and waits for what it returns."""


@contextmanager
def marked(folder: Path) -> Iterator[Stated]:
    """A mark in a folder, for `HostFiles.target`, which is removed afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / ".mark"
    mark.touch()
    try:
        yield stated(mark)
    finally:
        mark.unlink(missing_ok=True)


def fetch(call: FileCall, listed: Listed | None, folder: Path) -> None:
    """Write the files that a host has listed; None: it has written them itself."""
    if listed is None:
        return
    for name, size in listed.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            for start in range(0, size, PIECE):
                file.write(call("read", name, start, PIECE))
    call("clear")


def bring(call: FileCall, files: Mapping[str, Path | bytes]) -> None:
    """Let a host have the files of a state, by their names there: contents, or paths here."""
    known = {name: file if isinstance(file, bytes) else stated(file) for name, file in files.items()}
    for name in call("take", known):
        file = files[name]
        assert isinstance(file, Path), "contents travel at once"
        with file.open("rb") as opened:
            while piece := opened.read(PIECE):
                call("append", name, piece)
