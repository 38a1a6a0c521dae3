"""The program's own process: gives up its privileges, and then runs a file like Python.

A program begins with the modules of a new interpreter. The others that its worker has imported ahead are set
aside, and a finder at the front of `sys.meta_path` hands them out at their first import. If a file that
CPython would find before the standard library has the name of such a module, none is handed out any more: all
later imports are made anew, so that a module of the standard library that imports `queue` gets the program's
`queue.py`.
"""

from __future__ import annotations

import atexit
import gc
import importlib.machinery
import io
import json
import os
import random
import resource
import signal
import site
import sys
import threading
import types
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from typing import Any, NoReturn

from . import kernel, packages, spaces, users

_OURS = __name__.partition(".")[0]
_held: list[types.ModuleType] = []
"""This package's modules, which must stay alive after they are removed from `sys.modules`."""
_preloaded: list[Preloaded] = []
_reseed: list[Callable[[], Any]] = []
"""What each program has anew: random numbers, and the id of its thread."""
_judge: dict[str, Callable[..., None]] = {}
"""`main` of the judge's modules, by their name."""
_MAIN = f"{spaces.BOX}/main.py"


def start(order: dict[str, Any], argv: list[str], box: str, fds: list[int], source: bytes) -> NoReturn:
    """Run the program of a cell without namespaces, then end the process.

    Args:
        fds: these become 0, 1, 2, ...; no other descriptor stays open.
        source: of main.py.
    """
    try:
        os.setsid()
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        kernel.only(fds)
        os.chdir(f"{box}/work")
        for name, value in limits(order):
            resource.setrlimit(name, value)
        users.restrict(order, box)
        _begin(argv, box, judged=len(fds) > 3)
    except BaseException as error:
        _refuse(error)
    go(f"{box}/main.py", source, order["entry"])


def start_alone(
    bounds: list[tuple[int, tuple[int, int]]], argv: list[str], descriptors: int, source: bytes, entry: str
) -> NoReturn:
    """Run the program of a run with namespaces, then end the process.

    Args:
        bounds: of `limits`.
        descriptors: how many stay open, from 0 on; they are the program's.
        entry: of a judged run, the judge's module whose `main` is called with `source`.
    """
    try:
        os.setsid()
        os.closerange(descriptors, 1 << 16)
        for name, value in bounds:
            resource.setrlimit(name, value)
        _begin(argv, spaces.BOX, judged=descriptors > 3)
    except BaseException as error:
        _refuse(error)
    go(_MAIN, source, entry)


def _begin(argv: list[str], box: str, *, judged: bool) -> None:
    """Become an interpreter that was started for this program."""
    gc.enable()
    kernel.signals.signal(signal.SIGINT, signal.default_int_handler)
    kernel.signals.pthread_sigmask(signal.SIG_SETMASK, ())
    for reseed in _reseed:
        reseed()
    if argv or box != spaces.BOX:
        _set_arguments(argv, box)
    if not judged:
        _preloaded[0].set_aside(judged=False)


def _refuse(error: BaseException) -> NoReturn:
    os.write(2, f"the sandbox could not start the program: {error!r}\n".encode())
    os._exit(125)


def go(path: str, source: bytes, entry: str) -> NoReturn:
    """Run the program and end this process, whatever it does."""
    code = 1
    try:
        code = _run(path, source, entry)
    finally:
        os._exit(code)


def limits(order: dict[str, Any]) -> list[tuple[int, tuple[int, int]]]:
    """The kernel's limits of a program."""
    others = {resource.RLIMIT_NPROC: order["nproc"], resource.RLIMIT_MEMLOCK: 1 << 16}
    return kernel.bounds(order["cpu"], order["memory_mb"], order["disk_mb"], order["open_files"], others)


def prepare(folders: list[str], environment: dict[str, str]) -> None:
    """Set up environment, sys and __main__ like an interpreter that was started for a program.

    This happens once, in the worker. Pages that a run writes to and shares with the worker are copied, which
    is most of a run's cost, so everything that is the same for all programs is done here. This package's
    modules are removed from `sys.modules`.
    """
    os.environ.clear()
    os.environ.update(
        {
            "HOME": f"{spaces.BOX}/work",
            "LANG": "C.UTF-8",
            "PATH": f"{os.path.dirname(os.path.realpath(sys.executable))}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            "TMPDIR": f"{spaces.BOX}/tmp",
        }
    )
    if folders:
        os.environ["PYTHONPATH"] = ":".join(folders)
        os.environ.update(environment)
    _reseed.extend(packages.reseeders())
    _judge.update(
        (name.partition(".")[2], module.main)
        for name, module in sys.modules.items()
        if name.startswith("judging.") and hasattr(module, "main")
    )
    ours = [name for name in sys.modules if name.partition(".")[0] == _OURS]
    _held.extend(sys.modules.pop(name) for name in ours)
    site.setquit()  # the worker runs without `site`, which would add folders to sys.path
    site.setcopyright()
    site.sethelper()
    _preloaded.append(Preloaded())
    sys.path[:] = [f"{spaces.BOX}/work", *sys.path, *folders]
    sys.path_importer_cache.clear()
    sys.dont_write_bytecode = True
    null, (end, pipe) = os.open("/dev/null", os.O_RDWR), os.pipe()
    for descriptor in (1, 2):
        os.dup2(pipe, descriptor)  # streams adapt to their file when they are made; a program's are pipes
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        file = io.FileIO(descriptor, "rb" if descriptor == 0 else "wb", closefd=False)
        raw = io.BufferedReader(file) if descriptor == 0 else io.BufferedWriter(file)
        errors = "backslashreplace" if descriptor == 2 else "surrogateescape"
        file.name = f"<{name}>"  # type: ignore[misc]
        # CPython translates no line ends on Linux.
        stream = io.TextIOWrapper(raw, "utf-8", errors, newline="\n", line_buffering=descriptor == 2)
        stream.mode = "r" if descriptor == 0 else "w"  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)
    for descriptor in (null, end, pipe):
        os.close(descriptor)
    main = types.ModuleType("__main__")
    main.__dict__.update({"__annotations__": {}, "__builtins__": sys.modules["builtins"], "__cached__": None})
    sys.modules["__main__"] = main
    _preloaded[0].set_aside(judged=True)
    _set_arguments([], spaces.BOX)
    _reseed.append(random.seed)
    _reseed.append(threading.main_thread()._set_native_id)  # type: ignore[attr-defined]


def _set_arguments(argv: list[str], box: str) -> None:
    os.environ["HOME"], os.environ["TMPDIR"] = f"{box}/work", f"{box}/tmp"
    sys.path[0] = f"{box}/work"
    sys.argv[:] = [f"{box}/main.py", *argv]
    sys.orig_argv[:] = [sys.executable, *sys.argv]
    sys.modules["__main__"].__file__ = sys.argv[0]


def _run(path: str, source: bytes, entry: str) -> int:
    """Run the source of a file, or a module of the judge; the exit code is that of `python path`."""
    code = 0
    try:
        if entry:
            _judge[entry](*json.loads(source))
        else:
            exec(compile(source, path, "exec", dont_inherit=True), sys.modules["__main__"].__dict__)
    except SystemExit as leaving:
        code = _exit_code(leaving.code)
    except BaseException as error:
        # Without this function's frame; a SyntaxError has no frame at all.
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = 1
    try:
        # As the interpreter does: wait for the threads of the module that the program has imported.
        getattr(sys.modules.get("threading"), "_shutdown", lambda: None)()
        atexit._run_exitfuncs()
    except SystemExit as leaving:
        code = _exit_code(leaving.code)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, ValueError):
            pass  # the program closed or replaced it
        except OSError:
            code = code or 120  # CPython's exit code for a stdout that can't be written
    return code


def _exit_code(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    print(value, file=sys.stderr)
    return 1


# ------------------------------------------------------------------------------------------------ its modules

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
