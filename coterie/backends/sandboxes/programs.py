"""The checks before anything is started: of programs, for every sandbox, and of this machine's memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from coterie.core.errors import ConfigError
from coterie.core.protocols import Judged, Limits, Program
from coterie.machine import machine_memory

ARGUMENT = (1 << 17) - 1
"""Most bytes of one argument: Linux has a page less (MAX_ARG_STRLEN)."""
ARGUMENTS = 1 << 19
"""Most bytes of all arguments; Linux gives them a quarter of the stack."""
NAME, PATH = 255, 2000
"""Most bytes of a file's name, and of its path."""
FILES = 1000
PATTERNS = 100
"""Most globs in `collect`."""
FLOOD = 16 << 20
"""Bytes of output, stdout or stderr, after which every sandbox kills a program."""
_PAGE = 4096


def limits_of(asked: Any, default: Limits, kind: type[Program | Judged] = Program) -> Limits:
    """The limits of what a sandbox is asked to run. Raises ConfigError if it is of another type."""
    if not isinstance(asked, kind):
        method, first = ("run", "code") if kind is Program else ("judge", "candidate")
        raise ConfigError(
            f"{method} was given {_a(asked)}",
            why=f"it takes a coterie.{kind.__name__}",
            fix=f"sandbox.{method}(coterie.{kind.__name__}({first}=...))",
        )
    if asked.limits is None:
        return default
    _check_limits(asked.limits)  # also what is false, such as {}
    return asked.limits


def check_program(program: Program, limits: Limits) -> None:
    """Check that every sandbox can run a program, and would run it in the same way.

    Args:
        limits: the program's, or the sandbox's.

    Raises:
        ConfigError: a field of another type, a path that leaves the working folder, files that don't fit into
            the limits, an argument that no process can be given, or a limit that no kernel has.
    """
    limits_of(program, limits)
    for name, text in (("code", program.code), ("language", program.language), ("stdin", program.stdin)):
        _check_text(name, text)
    _check_limits(limits)
    _check_arguments(program.argv)
    _check_files(program.files)
    _check_room(program, limits)
    patterns = _several("collect", program.collect)
    if len(patterns) > PATTERNS:
        raise _refused("collect", f"{len(patterns)} globs", f"at most {PATTERNS}; ** stands for any folders")
    for pattern in patterns:
        _check_path("collect", pattern)


def check_judged(judged: Judged, limits: Limits) -> None:
    """Check a candidate and its tests as `check_program` does. Raises ConfigError."""
    limits_of(judged, limits, Judged)
    _check_text("candidate", judged.candidate)
    _check_text("tests", judged.tests)
    for name in _several("calls", judged.calls):
        if type(name) is not str or not name.isidentifier():
            raise _refused("calls", f"the name {_short(name)}", "names of functions of the candidate")
    check_program(Program(code=judged.candidate, files=judged.files), judged.limits or limits)


def _check_text(field: str, value: Any) -> None:
    if not isinstance(value, str):
        raise _refused(field, _a(value), "a str")


def _check_limits(limits: Any) -> None:
    """Check a copy too, which pydantic doesn't."""
    if not isinstance(limits, Limits):
        raise _refused("limits", _a(limits), "coterie.Limits")
    try:
        Limits.model_validate(limits.model_dump(warnings=False), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"{_short(first['input'])} is no limit of a program",
            why=first["msg"],
            fix="coterie.Limits has the bounds",
            path=f"limits.{field}",
        ) from None


def _check_arguments(argv: Any) -> None:
    total = 0
    for argument in _several("argv", argv):
        if not isinstance(argument, str):
            raise _refused(
                "argv", f"the argument {_short(argument)} is {_a(argument)}", "each argument a str"
            )
        if "\0" in argument or _bytes(argument) is None:
            raise _refused("argv", _short(argument), "text without NUL that UTF-8 can encode")
        size = len(argument.encode())
        total += size + 1
        if size > ARGUMENT:
            raise _refused("argv", f"an argument of {size} bytes", f"at most {ARGUMENT}; use stdin or a file")
    if total > ARGUMENTS:
        raise _refused("argv", f"arguments of {total} bytes", f"at most {ARGUMENTS}; use stdin or a file")


def _check_files(files: Any) -> None:
    if not isinstance(files, Mapping):
        raise _refused("files", _a(files), "a table of contents by path")
    if len(files) > FILES:
        raise _refused("files", f"{len(files)} files", f"at most {FILES}")
    folders: set[str] = set()
    for path, data in files.items():
        _check_path("files", path)
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise _refused("files", f"{_a(data)} for {_short(path)}", "contents as bytes")
        names = path.split("/")
        folders.update("/".join(names[:depth]) for depth in range(1, len(names)))
    for path in files:
        if path in folders:
            raise _refused("files", f"the file {_short(path)}, which is a folder of another", "other names")


def _check_room(program: Program, limits: Limits) -> None:
    """The folder of a run is limited, and files take whole pages."""
    sizes = [len(text.encode("utf-8", "surrogatepass")) for text in (program.code, program.stdin)]
    sizes += [memoryview(data).nbytes for data in program.files.values()]
    folders = {path.rpartition("/")[0] for path in program.files}
    needed = sum(-(-size // _PAGE) * _PAGE for size in sizes) + _PAGE * len(folders)
    if needed > limits.disk_mb << 20:
        raise ConfigError(
            f"a program's code, stdin and files take {needed / 2**20:.1f} MB",
            why=f"its limits allow {limits.disk_mb} MB for all files",
            fix="raise disk_mb, or give it less",
            path="limits.disk_mb",
        )


def _check_path(field: str, path: Any) -> None:
    raw = _bytes(path) if isinstance(path, str) else None
    if raw is None or b"\0" in raw or {"", ".", ".."} & {*path.split("/")}:
        raise _refused(
            field,
            f"{_short(path)}, which is no place in the working folder of a program",
            "a path relative to it, without `.` and `..`, that UTF-8 can encode",
        )
    if len(raw) > PATH or max(map(len, raw.split(b"/"))) > NAME:
        raise _refused(field, f"a path of {len(raw)} bytes", f"at most {PATH}, and {NAME} in a name")


def _several(field: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, (str, bytes, Iterator)) or not isinstance(values, Iterable):
        raise _refused(field, _a(values), "a tuple of str")  # an iterator would be empty after this check
    return tuple(values)


def _bytes(text: str) -> bytes | None:
    """The text in UTF-8; None for lone surrogates."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _a(value: Any) -> str:
    """The type of a value, with its article."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _refused(field: str, what: str, fix: str) -> ConfigError:
    return ConfigError(f"{field} of a program: {what}", why="a sandbox can't give it to a process", fix=fix)


def check_fits(
    workers: int, limits: Mapping[str, Limits], *, in_memory: bool, path: str, by_default: bool
) -> None:
    """Refuse programs that together may take more memory than this machine has.

    Args:
        workers: programs at the same time.
        limits: of the programs, by the path of the setting that has them.
        in_memory: whether the programs' files are in memory (a tmpfs).
        path: the sandbox's.
        by_default: whether `workers` is the number of CPUs.

    Raises:
        ConfigError: what takes how much, how many run at once, and how much there is.
    """
    memory = machine_memory()
    if memory is None:
        return
    has = memory >> 20
    for place, limit in limits.items():
        each = limit.memory_mb + (limit.disk_mb if in_memory else 0)
        if workers * each <= has:
            continue
        disk = f" and {limit.disk_mb:,} MB of files, which are in memory (disk_mb)" if in_memory else ""
        most = has // each
        fix = f"set {path}.workers to at most {most}, or lower" if most else "lower"
        raise ConfigError(
            f"{workers} programs at a time may take {workers * each:,} MB, and this machine has {has:,} MB",
            path=place,
            why=f"each may take {limit.memory_mb:,} MB of memory (memory_mb){disk}; `workers` is {workers}"
            + (", the number of CPUs" if by_default else ""),
            fix=f"{fix} {place}.memory_mb" + (" or disk_mb" if in_memory else ""),
        )
