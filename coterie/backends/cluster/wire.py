"""What goes between processes of a run: methods' results, or exceptions that keep their origin."""

from __future__ import annotations

import functools
import pickle
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from coterie.backends.cluster.compact import compact
from coterie.backends.remote.secrets import redacted
from coterie.core.errors import UserError

Answered = tuple[bool, Any]
"""(whether the method returned, what it returned or the exception as `sent_error` writes it)."""


def sent_error(error: BaseException, where: str, path: str = "") -> bytes:
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
        data = compact((type(error), error.args, vars(error)))
        received_error(data)
    except Exception:  # an exception that can't be pickled, or can't be made again
        text = f"{type(error).__name__}: {error}"
        data = compact((RuntimeError, (text,), {"__notes__": list(getattr(error, "__notes__", ()))}))
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
