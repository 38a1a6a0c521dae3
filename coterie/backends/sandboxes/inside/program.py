"""The program's own process: gives up its privileges, and then runs a file like Python."""

from __future__ import annotations

import atexit
import gc
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
from collections.abc import Callable
from typing import Any, NoReturn

from . import kernel, modules, packages, spaces, users

_OURS = __name__.partition(".")[0]
_held: list[types.ModuleType] = []
"""This package's modules, which must stay alive after they are removed from `sys.modules`."""
_preloaded: list[modules.Preloaded] = []
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
    _preloaded.append(modules.Preloaded())
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
