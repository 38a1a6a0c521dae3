"""Logs of what others print: processes beside the run, and libraries in it. Imports nothing of Coterie.

A run keeps them in RUN/logs, in a file for each of them: `libraries.log`, `rank-1.log`, `vllm-shared-0.log`.
Processes write to theirs wherever a run has a folder. What libraries print in this process is kept only where
the command line has taken its terminal (`cli/terminal.py`): nobody else's standard output is touched.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TextIO

log = logging.getLogger("coterie")

VERBOSE = "COTERIE_VERBOSE"
"""The environment variable that, with the value 1, leaves all output on the terminal."""
LIMIT = 64 * 2**20
"""Bytes of a log; past them its older half is dropped."""
SECONDS = 10.0
"""Between two looks at the sizes."""
LIBRARIES = "libraries"
"""The log of what libraries in this process print."""

take: Callable[[TextIO | None], AbstractContextManager[None]] | None = None
"""Sends what libraries print to a log, or to the terminal where there is none; the command line sets it."""
_folder: Path | None = None
_begun: dict[Path, int] = {}
"""The logs that were begun in the folder, with their sizes then; -1: it was there before."""
_refused: set[Path] = set()
"""Folders in which no log can be written."""


def verbose() -> bool:
    """Whether all output stays on the terminal."""
    return os.environ.get(VERBOSE) == "1"


@contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Keep the output of processes that start meanwhile, and of libraries, in the logs of a folder."""
    global _folder
    if verbose():
        yield
        return
    before, _folder = _folder, None if folder in _refused else folder
    _begun.clear()
    ended = threading.Event()
    threading.Thread(target=_watch, args=(folder, ended), daemon=True, name="coterie-logs").start()
    try:
        with take(opened(LIBRARIES)) if take is not None else nullcontext():
            yield
    except BaseException:
        _remove_unused()  # a start that failed leaves no folder, unless somebody has printed why
        raise
    finally:
        ended.set()
        _shorten_all(folder)
        _folder = before


@contextmanager
def kept_for_now() -> Iterator[None]:
    """`kept_in` for work without a folder: its logs are removed, unless it fails after they got anything."""
    if verbose():
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix="coterie-logs-"))
    try:
        with kept_in(folder):
            yield
    except BaseException:
        if folder.is_dir() and any(folder.iterdir()):
            log.warning("what processes and libraries printed is in %s", folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def opened(who: str) -> TextIO | None:
    """Open a log to append to it, with a line that says when and by which process.

    None: output stays where it is, since it is nowhere kept, or the log can't be written, which is told once.
    """
    global _folder
    if _folder is None:
        return None
    path = _path(_folder, who)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
        if path not in _begun:
            _begun[path] = 0 if file.tell() == 0 else -1
        file.write(f"=== {time.strftime('%Y-%m-%d %H:%M:%S %z')}  {who}, of process {os.getpid()}\n")
        if _begun[path] == 0:
            _begun[path] = file.tell()
        return file
    except OSError as error:
        why = error.strerror or error
        log.warning("no logs can be written to %s: %s; the output is on the terminal", _folder, why)
        _refused.add(_folder)
        _folder = None
        return None


def where(who: str) -> str:
    """Where to read what somebody printed, for a message: `see ` and this."""
    if _folder is None or (who == LIBRARIES and take is None):
        return "the messages above"
    return str(_path(_folder, who))


def _path(folder: Path, who: str) -> Path:
    return folder / (re.sub(r"[^\w.-]", "_", who) + ".log")


def _remove_unused() -> None:
    """Remove new logs that have no more than their first line, and a folder without logs."""
    for path, size in _begun.items():
        with suppress(OSError):
            if path.stat().st_size == size:
                path.unlink()
                path.parent.rmdir()


def _watch(folder: Path, ended: threading.Event) -> None:
    while not ended.wait(SECONDS):
        _shorten_all(folder)


def _shorten_all(folder: Path) -> None:
    for path in folder.glob("*.log"):
        with suppress(OSError):
            shorten(path)


def shorten(path: Path) -> None:
    """Drop the older half of a log that is too long, in place: those who write to it have it open."""
    size = path.stat().st_size
    if size <= LIMIT:
        return
    with path.open("rb+") as file:
        file.seek(size - LIMIT // 2)
        rest = file.read().partition(b"\n")[2]
        file.truncate(0)  # who appends goes on at the new end
    with path.open("ab") as file:
        file.write(b"=== older lines were dropped: a log has at most %d MiB\n" % (LIMIT >> 20) + rest)
