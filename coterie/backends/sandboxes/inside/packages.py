"""The packages that a worker imports ahead of its runs: a run is a fork of the worker, and has them at once.

What a fork inherits is a copy, but for descriptors and shared memory. So a worker that has either of them, or
a thread, which no fork has, after its imports does not serve.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import PathFinder
from typing import Any


class UnusableModule(Exception):
    """A module that can't be imported ahead, and why: `args`."""


class ShownFinder:
    """A finder that says of modules which programs may not see that they aren't there.

    Without it a worker that has no mount namespace would import them for an optional import of a package, and
    a program would find names of files that it can't open, which is no ImportError.
    """

    def __init__(self, shown: list[str], folders: list[str]) -> None:
        self._shown, self._folders = shown, folders

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> None:
        """Nothing: the other finders have the modules that may be seen. Raises ModuleNotFoundError."""
        spec = PathFinder.find_spec(name, path, target)
        if spec is None:
            return
        places = [spec.origin] if spec.origin else [*(spec.submodule_search_locations or ())]
        if any(map(self._hidden, places)) and not any(map(self._seen, places)):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    def _hidden(self, place: str) -> bool:
        return any(place.startswith(f"{folder}/") for folder in self._folders)

    def _seen(self, place: str) -> bool:
        """Whether a file or a package is shown, or, of a package without `__init__`, a part."""
        return any(f"{place}/".startswith(f"{path}/") or path.startswith(f"{place}/") for path in self._shown)


def load(
    modules: list[str], shown: list[str], folders: list[str], environment: dict[str, str], proc: int
) -> None:
    """Import modules.

    Args:
        shown: files and folders that programs may see.
        folders: where these modules are.
        environment: variables that they read when they are imported.
        proc: a descriptor of the host's /proc; -1: there is none.

    Raises:
        Unusable: an import fails, or leaves what a fork would share.
    """
    if not folders:
        return
    os.environ.update(environment)
    sys.meta_path.insert(0, ShownFinder(shown, folders))  # type: ignore[arg-type]
    sys.dont_write_bytecode = True
    before, me, childless = _kept(proc), os.getpid(), not _has_children()
    sys.path.extend(folders)
    try:
        for name in modules:
            try:
                importlib.import_module(name)
            except BaseException as error:
                if os.getpid() != me:
                    os._exit(0)
                raise UnusableModule(name, f"{type(error).__name__}: {error}") from error
            if os.getpid() != me:  # a fork that the import has made: there is one worker
                os._exit(0)
            if childless and _has_children():
                raise UnusableModule(name, "its import starts a process")
            for what, count in _kept(proc).items():
                if count > before[what]:
                    raise UnusableModule(name, f"its import leaves {count - before[what]} {what}")
    finally:
        del sys.path[len(sys.path) - len(folders) :]
    sys.path_importer_cache.clear()
    if "tempfile" in sys.modules:
        setattr(sys.modules["tempfile"], "tempdir", None)  # noqa: B010 - a program has its own


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


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
