"""The terminal of a command: it shows our messages and what plugins print, and nothing of libraries.

Who prints is seen from the stack. What a plugin prints is shown, also through a library that it calls. What a
library prints that this package calls goes to the log. Native code and other processes write to descriptors 1
and 2, which are the log's too.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal, TextIO

from coterie import logs

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_STANDARD = f"{Path(os.__file__).parent}{os.sep}"
_INSTALLED = ("site-packages", "dist-packages")
_DISPLAYS = ("click", "rich")
"""Libraries through which this package and plugins print."""
_descriptors: dict[int, str] = {}
"""The standard descriptors that are this command's own, and the streams that write to them."""
_log: TextIO | None = None
"""Where output of libraries goes: a log, or a text as long as there is none yet. None: the terminal."""
_hooked = False
_full = False
"""Whether a log could not be written any more."""


def take_over() -> None:
    """Take standard output and error, as the console script does: streams get descriptors of their own."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        try:
            if stream.fileno() != number:
                continue
            stream.flush()
            copy = os.fdopen(os.dup(number), "wb")
        except (AttributeError, OSError, ValueError):
            continue  # closed, or somebody's own
        _descriptors[number] = name
        text = io.TextIOWrapper(
            copy,
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, FilteredStream(text))
    logs.take = _taken


def hold() -> None:
    """Hold back what libraries print until their folder is known; without one it is shown at the end."""
    global _log
    if _descriptors and _log is None and not logs.verbose():
        _log = io.StringIO()
        _hook()
        atexit.register(_release)


def _release() -> None:
    """Show what was held back."""
    global _log
    if isinstance(_log, io.StringIO):
        held, _log = _log, None
        sys.stderr.write(held.getvalue())


@contextmanager
def _taken(log: TextIO | None) -> Iterator[None]:
    """Send the output of libraries to a log, from now to the end of the process."""
    global _log
    if log is None or not _descriptors:
        _release()
        yield
        return
    held, _log = _log, log
    if isinstance(held, io.StringIO):
        _keep(held.getvalue())
    _hook()
    streams = {}
    for number, name in _descriptors.items():
        os.dup2(log.fileno(), number)
        if not isinstance(getattr(sys, name), FilteredStream):  # a progress bar has replaced it
            streams[name] = FilteredStream(getattr(sys, name))
            setattr(sys, name, streams[name])
    try:
        yield
    finally:
        for name, stream in streams.items():
            if getattr(sys, name) is stream:
                setattr(sys, name, stream.stream)


def _keep(text: str) -> int:
    """Write to the log; one that is full costs no run, and is told once."""
    global _full
    assert _log is not None
    if isinstance(_log, io.StringIO):
        return _log.write(text)
    try:
        os.write(_log.fileno(), text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        if not _full:
            _full = True
            logging.getLogger("coterie").warning("%s can't be written: %s", _log.name, error.strerror)
    return len(text)


class FilteredStream:
    """A stream that passes on what the user is to see; the rest goes to the log."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        if _log is not None and _a_librarys(_files(_before_wrappers(sys._getframe(1)))):
            return _keep(text)
        return self.stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


# ------------------------------------------------------------------------------------------------ who prints


@cache
def _plugins() -> frozenset[str]:
    """The top-level modules of installed plugins."""
    from importlib.metadata import entry_points

    return frozenset(entry.module.partition(".")[0] for entry in entry_points(group="coterie"))


@cache
def _whose(file: str) -> Literal["ours", "plugin", "library", "standard", "display"]:
    """Whose code is in a file. A user's own, wherever it is, counts as a plugin's."""
    if file.startswith("<"):
        return "standard"  # generated code
    if file == __file__:
        return "display"
    if file.startswith(_PACKAGE):
        return "ours"
    parts = Path(file).parts
    for folder in _INSTALLED:
        if folder in parts[:-1]:
            name = parts[parts.index(folder) + 1].partition(".")[0]
            if name in _DISPLAYS:
                return "display"
            return "plugin" if name in _plugins() else "library"
    return "standard" if file.startswith(_STANDARD) else "plugin"


def _a_librarys(files: Iterable[str]) -> bool:
    """Whether a library prints; the files of the calls, the latest first."""
    library = False
    for file in files:
        whose = _whose(file)
        if whose in ("ours", "plugin"):
            return library and whose == "ours"
        library = library or whose == "library"
    return library


def _files(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def _before_wrappers(frame: FrameType | None) -> FrameType | None:
    """The call that prints: a library may have put a `write` of its own before a stream's, for all who print.

    W&B does so when it is imported. What only passes through such a function is not what the library prints.
    """
    while frame is not None and frame.f_code.co_name.startswith("write"):
        if _whose(frame.f_code.co_filename) not in ("library", "standard"):
            break
        frame = frame.f_back
    return frame


def _raised_in(trace: TracebackType | None) -> list[str]:
    """The files of an exception's calls, the latest first."""
    return [frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace)][::-1]


# ---------------------------------------------------------------------------- what Python itself would print


def _hook() -> None:
    """Sort warnings, records of loggers without a handler, and exceptions that nobody handles."""
    global _hooked
    if _hooked:
        return
    _hooked = True
    logging.lastResort = _LastResort(logging.WARNING)
    logging.getLogger("coterie").addHandler(_Tracebacks(logging.WARNING))
    show, thread, unraisable = warnings.showwarning, threading.excepthook, sys.unraisablehook

    def showwarning(message: Any, category: Any, filename: str, *rest: Any, **named: Any) -> None:
        if _log is None or _whose(filename) == "plugin":
            show(message, category, filename, *rest, **named)
        else:
            _keep(warnings.formatwarning(message, category, filename, rest[0]))

    def excepthook(args: threading.ExceptHookArgs) -> None:
        if _log is None or not _a_librarys(_raised_in(args.exc_traceback)):
            thread(args)
        else:
            name = args.thread.name if args.thread is not None else ""
            _keep(f"in thread {name}:\n" + "".join(traceback.format_exception(args.exc_value)))

    def unraisablehook(args: sys.UnraisableHookArgs) -> None:
        if _log is None or not _a_librarys(_raised_in(args.exc_traceback)):
            unraisable(args)
        else:
            trace = "".join(traceback.format_exception(args.exc_value))
            _keep(f"{args.err_msg or 'Exception ignored in'}: {args.object!r}\n{trace}")

    warnings.showwarning = showwarning
    threading.excepthook, sys.unraisablehook = excepthook, unraisablehook


class _LastResort(logging.Handler):
    """For records of loggers that have no handler."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            theirs = _a_librarys(_raised_in(record.exc_info[2]))
        else:
            theirs = _whose(record.pathname) == "standard" or _a_librarys(_files(sys._getframe(1)))
        text = self.format(record) + "\n"
        if _log is not None and theirs:
            _keep(text)
        else:
            sys.stderr.write(text)


class _Tracebacks(logging.Handler):
    """Writes the tracebacks of our own records to the log: the terminal has their messages."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and _log is not None:
            _keep(self.format(record) + "\n")
