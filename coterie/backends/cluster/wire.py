"""What goes between processes of a run: exceptions that keep their origin, and where to import from."""

from __future__ import annotations

import functools
import importlib.util
import pickle
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from coterie.backends.remote.secrets import redacted
from coterie.core.errors import UserError
from coterie.discovery import plugins

T = TypeVar("T")
Places = tuple[list[str], dict[str, str]]
"""`sys.path`, and the files of plugins by the names of their modules."""
Answered = tuple[bool, Any]
"""(whether the method returned, what it returned or the exception as `sent_error` writes it)."""

# ------------------------------------------------------------------------------------------------- exceptions


def sent_error(
    error: BaseException, where: str, dumps: Callable[[Any], bytes] = pickle.dumps, path: str = ""
) -> bytes:
    """An exception with its class, arguments, attributes and notes; a bug brings its traceback.

    Args:
        where: the process that raises it, after a preposition: `on rank 1`.
        path: the setting that an exit of the process is told with.
    """
    exit_ = error if isinstance(error, SystemExit) else error.__cause__
    if isinstance(exit_, SystemExit):
        error = _without_exit(error, exit_, where, path)
    if not isinstance(error, UserError):
        where += ":\n" + redacted("".join(traceback.format_exception(error)).rstrip())
    error.add_note(where)
    try:
        data = dumps((type(error), error.args, vars(error)))
        received_error(data)
    except Exception:  # an exception that can't be pickled, or can't be made again
        text = f"{type(error).__name__}: {error}"
        data = dumps((RuntimeError, (text,), {"__notes__": list(getattr(error, "__notes__", ()))}))
    return data


def _without_exit(error: BaseException, exit_: SystemExit, where: str, path: str) -> UserError:
    """A call of `sys.exit` as an error, with its line: the process would end without a word."""
    places = traceback.extract_tb(exit_.__traceback__)
    why = f"{places[-1].filename}, line {places[-1].lineno}, in {places[-1].name}" if places else ""
    if isinstance(error, UserError):  # it names the plugin
        error.why, error.__cause__ = f"{where}: {why}", None
        return error
    process = where.partition(" ")[2]
    return UserError(f"{process} called sys.exit({exit_.code!r})", path=path, why=why)


def received_error(data: bytes) -> BaseException:
    """The exception of `sent_error`."""
    kind, arguments, attributes = pickle.loads(data)
    error: BaseException = kind.__new__(kind, *arguments)  # an __init__ may take other arguments
    error.__dict__.update(attributes)
    return error


def answered(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Answered]]:
    """A method of an actor that returns its exception, since Ray would wrap one in a class of its own.

    The actor's class names its `process`, for the note of an exception.
    """

    @functools.wraps(method)
    async def call(self: Any, *arguments: Any) -> Answered:
        try:
            return True, await method(self, *arguments)
        except Exception as error:
            return False, sent_error(error, f"in {self.process}")

    return call


def unwrapped(answer: Answered) -> Any:
    """What the method returned; its exception is raised."""
    returned, value = answer
    if returned:
        return value
    raise received_error(value)


# ---------------------------------------------------------------------------------------------------- imports


def import_places() -> Places:
    """Where this process imports from: `sys.path`, and the files of plugins by the names of their modules."""
    files = {
        report.name: str(Path(report.distribution).resolve())
        for report in plugins().reports
        if report.distribution.endswith(".py") and Path(report.distribution).is_file()
    }
    return [str(Path(place).resolve()) for place in sys.path], files


def import_from(places: list[str], files: Mapping[str, str]) -> None:
    """Import from where the run's process does.

    Raises:
        Exception: what a plugin's file raises when it is imported.
    """
    sys.path.extend(place for place in places if place not in sys.path)
    for name, file in files.items():
        spec = importlib.util.spec_from_file_location(name, file)
        if name not in sys.modules and spec is not None and spec.loader is not None:
            sys.modules[name] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
