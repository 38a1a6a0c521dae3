"""The modules that a worker has imported ahead of its runs, and how a program gets them.

A program begins with the modules of a new interpreter. The others are set aside, and a finder at the front of
`sys.meta_path` hands them out at their first import. If a file that CPython would find before the standard
library has the name of such a module, none is handed out any more: all later imports are made anew, so that a
module of the standard library that imports `queue` gets the program's `queue.py`.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import types
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec

_NAMES = """
    __main__ _abc _codecs _collections_abc _frozen_importlib _frozen_importlib_external _imp _io _signal
    _sitebuiltins _stat _thread _warnings _weakref abc builtins codecs encodings encodings.aliases
    encodings.utf_8 genericpath io marshal os os.path posix posixpath site stat sys time zipimport
"""
STARTUP = frozenset(_NAMES.split())
"""The modules of an interpreter that has just been started for a file."""
_JUDGE = "judging"
_INITIALISED_ONCE = frozenset({"numbers"})
"""C modules are initialised once in a process, and `_decimal` registers its type with this module then."""
_SUFFIXES = tuple(importlib.machinery.all_suffixes())


class Preloaded:
    """A finder, and the loader, of modules that are already executed."""

    def __init__(self) -> None:
        self._library = frozenset(sys.path)
        self._aside: dict[str, types.ModuleType] = {}
        self._specs: dict[str, ModuleSpec | None] = {}
        inner = _by_package(sys.modules)
        self._uses = {
            name: _used_by(module, inner.get(getattr(module, "__name__", ""), ()))
            for name, module in sys.modules.items()
            if name not in STARTUP
        }
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]

    def set_aside(self, *, judged: bool) -> None:
        """Remove from `sys.modules` all that a new interpreter doesn't have.

        Args:
            judged: whether the judge's modules stay, for a program of a pair.
        """
        for name in [*sys.modules]:
            if name.partition(".")[0] == _JUDGE:
                if not judged:
                    del sys.modules[name]
            elif name not in STARTUP:
                self._aside[name] = sys.modules.pop(name)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if target is not None or name not in self._aside:
            return None
        shadows = self._shadows()
        if shadows:
            self._give_up(shadows)
            if name not in self._aside:
                return None
        original = getattr(self._aside[name], "__spec__", None)
        self._specs[name] = original
        spec = ModuleSpec(name, self, origin=original and original.origin)  # type: ignore[arg-type]
        spec.submodule_search_locations = original and original.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return self._aside.pop(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Restore what the import system has just set, and import what the module has imported: C code looks
        for its modules in `sys.modules`. The worker has executed it."""
        assert module.__spec__ is not None
        name = module.__spec__.name
        module.__spec__ = self._specs.pop(name)
        names = [name]
        for name in names:  # grows meanwhile
            for used in self._uses.get(name, ()):
                if used in self._aside:
                    sys.modules[used] = self._aside.pop(used)
                    names.append(used)

    def _shadows(self) -> set[str]:
        """The modules set aside whose name has a file in a folder that comes before the standard library."""
        names = set()
        for folder in sys.path:
            if folder in self._library:
                break
            try:
                entries = os.listdir(folder or ".")
            except (OSError, TypeError, ValueError):
                continue
            for entry in entries:
                name, dot, rest = entry.partition(".")
                if name in self._aside and (
                    (dot + rest).endswith(_SUFFIXES) if dot else _is_package(os.path.join(folder, entry))
                ):
                    names.add(name)
        return names

    def _give_up(self, shadows: set[str]) -> None:
        """Keep C modules, which differ in nothing when they are imported anew, and packages, whose C modules
        can be initialised only once in a process."""
        self._aside = {
            name: module
            for name, module in self._aside.items()
            if name.partition(".")[0] not in shadows
            and (
                name in _INITIALISED_ONCE
                or _is_c(module)
                or name.partition(".")[0] not in sys.stdlib_module_names
            )
        }


def _by_package(names: Iterable[str]) -> dict[str, list[str]]:
    """The modules inside each package, at any depth."""
    inner: dict[str, list[str]] = {}
    for name in names:
        outer = name
        while outer := outer.rpartition(".")[0]:
            inner.setdefault(outer, []).append(name)
    return inner


def _used_by(module: types.ModuleType, inner: Iterable[str]) -> list[str]:
    """The modules that a module has imported, as far as its names show, and those inside it."""
    names = {*inner}
    for value in vars(module).values():
        if isinstance(value, types.ModuleType):
            names.add(value.__name__)
        elif isinstance(value, (type, types.FunctionType)):
            names.add(value.__module__)
    return sorted(name for name in names if isinstance(name, str) and name not in STARTUP)


def _is_c(module: types.ModuleType) -> bool:
    spec = getattr(module, "__spec__", None)
    loader = spec and spec.loader
    builtin = importlib.machinery.BuiltinImporter
    return loader is builtin or isinstance(loader, importlib.machinery.ExtensionFileLoader)


def _is_package(path: str) -> bool:
    try:
        return any(name.startswith("__init__.") for name in os.listdir(path))
    except OSError:
        return False
