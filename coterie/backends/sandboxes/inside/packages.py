"""The packages that a worker imports ahead of its runs: a run is a fork of the worker, so it has them at once.

What a fork inherits is a copy, but for descriptors and shared memory. So a worker that has either of them, or
a thread, which no fork has, after its imports does not serve.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

class Unusable(Exception):
    """A module that can't be imported ahead, and why: `args`."""


def load(modules: list[str], folders: list[str], environment: dict[str, str], proc: int) -> None:
    """Import modules.

    Args:
        folders: where they are.
        environment: variables that they read when they are imported.
        proc: a descriptor of the host's /proc; -1: there is none.

    Raises:
        Unusable: an import fails, or leaves what a fork would share.
    """
    if not folders:
        return
    os.environ.update(environment)
    sys.dont_write_bytecode = True
    before = _kept(proc)
    sys.path.extend(folders)
    try:
        for name in modules:
            try:
                importlib.import_module(name)
            except BaseException as error:
                raise Unusable(name, f"{type(error).__name__}: {error}") from error
            for what, count in _kept(proc).items():
                if count > before[what]:
                    raise Unusable(name, f"its import leaves {count - before[what]} {what}")
    finally:
        del sys.path[len(sys.path) - len(folders) :]
    sys.path_importer_cache.clear()


def _kept(proc: int) -> dict[str, int]:
    """How many open descriptors, threads and places of shared memory this process has."""
    if proc < 0:
        return {"open descriptors": 0, "threads": 0, "places of shared memory": 0}
    descriptor = os.open("self/maps", os.O_RDONLY, dir_fd=proc)
    with open(descriptor, encoding="utf-8", errors="replace") as file:
        shared = sum(line.split(maxsplit=2)[1][1::2] == "ws" for line in file)
    return {
        "open descriptors": _count("self/fd", proc),
        "threads": _count("self/task", proc),
        "places of shared memory": shared,
    }


def _count(path: str, proc: int) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc)
    try:
        return len(os.listdir(descriptor))
    finally:
        os.close(descriptor)


def size(proc: int) -> int:
    """The address space of this process in 2^20 bytes; 0: unknown."""
    if proc < 0:
        return 0
    descriptor = os.open("self/statm", os.O_RDONLY, dir_fd=proc)
    try:
        return int(os.read(descriptor, 256).split()[0]) * os.sysconf("SC_PAGE_SIZE") >> 20
    finally:
        os.close(descriptor)


def reseeders() -> list[Callable[[], Any]]:
    """What gives a fork random numbers of its own: `random` is program.py's matter."""
    numpy_random = sys.modules.get("numpy.random")
    return [numpy_random.seed] if numpy_random is not None else []
