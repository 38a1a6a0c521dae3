"""Where a component comes from: every error that a plugin causes names it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from coterie.core.errors import CoterieError, PluginError, SystemFault, UserError
from coterie.core.types.messages import encodable

log = logging.getLogger("coterie")


class Origin(NamedTuple):
    """A component's plugin, and its place in the configuration."""

    kind: str
    name: str
    distribution: str
    path: str = ""
    """Dotted path in the configuration; empty: the component was made without one."""

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}' of {self.distribution}"


def origin_of(plugin: Any) -> Origin:
    """The origin that the builder recorded; of another object its class and package."""
    if isinstance(plugin, Origin):
        return plugin
    try:
        origin: Origin = object.__getattribute__(plugin, "_origin")
    except AttributeError:
        return Origin("plugin", type(plugin).__qualname__, type(plugin).__module__.partition(".")[0])
    return origin


def record_origin(plugin: Any, origin: Origin) -> None:
    """Remember the origin of a component. An object without a `__dict__` keeps the name of its class."""
    try:
        object.__setattr__(plugin, "_origin", origin)
    except (AttributeError, TypeError):
        return


def place(file: str, line: int) -> str:
    """` (FILE, line N)`, for messages; a file in the working folder by its path from there."""
    return f" ({file.removeprefix(os.getcwd() + os.sep)}, line {line})"


def raised_at(error: BaseException) -> str:
    """The last place in a plugin's own package that a bug passed; empty for a fault: its text is complete."""
    calls = [(frame.f_globals.get("__name__", "").partition(".")[0], frame.f_code.co_filename, line)
             for frame, line in traceback.walk_tb(error.__traceback__)]  # fmt: skip
    theirs = [call for call in calls if call[0] not in ("coterie", *sys.stdlib_module_names)]
    if isinstance(error, CoterieError) or not theirs:
        return ""
    return next(place(file, line) for package, file, line in reversed(theirs) if package == theirs[0][0])


def failure(plugin: Any, method: str, error: BaseException) -> str:
    """The reason of a fault: the plugin, its distribution, the method, the exception and its place."""
    try:
        text = str(error)[:2000]
    except Exception as raised:  # the exception's own `__str__` has a bug
        text = f"(its text raised {type(raised).__name__})"
    what = f"{type(error).__name__}: {text}{raised_at(error)}"
    return encodable(f"{origin_of(plugin)}: {method} raised {what}")


def cancelled(error: BaseException) -> bool:
    """Whether an error ends the running task because it is cancelled, and not a task of a plugin's own."""
    if not isinstance(error, asyncio.CancelledError):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs
        return False
    return task is not None and task.cancelling() > 0


async def closed(plugin: Any) -> None:
    """Close a plugin. A failure is logged: it must not hide the error that ended the run."""
    try:
        await plugin.close()
    except (Exception, asyncio.CancelledError) as error:
        if cancelled(error):
            raise
        log.warning("%s", failure(plugin, "close", error))


@contextmanager
def plugin_call(plugin: Any, method: str) -> Iterator[None]:
    """A context in which a plugin's method is called: an exception that passes, or an exit, names it."""
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        raise  # no plugin causes them
    except BaseException as error:  # libraries derive from it, too
        if cancelled(error):
            raise
        origin, where = origin_of(plugin), f"{origin_of(plugin)}: {method}"
        if isinstance(error, SystemExit):  # it would end the run without a word
            raise PluginError(f"{where} called sys.exit({error.code!r})", path=origin.path) from error
        if isinstance(error, asyncio.CancelledError):  # as a cancellation it would end the run without a name
            what = f"{where} raised CancelledError, though nobody cancelled it{raised_at(error)}"
            fix = "catch it where the plugin awaits a task or future that may be cancelled"
            raise PluginError(what, path=origin.path, fix=fix) from error
        note = f"in {where}{raised_at(error)}"
        if not isinstance(error, UserError) and note not in getattr(error, "__notes__", ()):
            error.add_note(note)  # a UserError's message is complete
        raise


@contextmanager
def plugin_open(plugin: Any) -> Iterator[None]:
    """A `plugin_call` of `open`. What the plugin connects to or reads may be missing: that is no bug.

    Raises:
        UserError: `open` raised an OSError (a refused connection, a missing file), an error that one caused,
            or a SystemFault.
    """
    try:
        with plugin_call(plugin, "open"):
            yield
    except UserError:
        raise
    except Exception as error:
        cause: BaseException | None = error
        while not isinstance(cause, (OSError, SystemFault)):
            if cause is None:
                raise
            cause = cause.__cause__
        origin, why = origin_of(plugin), f"{type(error).__name__}: {error}{raised_at(error)}"
        fix = "make sure that what it connects to or reads is there, and check its settings"
        raise UserError(f"{origin} could not open", path=origin.path, why=why, fix=fix) from error
