"""Where a component comes from: every error that a plugin causes names it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from coterie.core.errors import PluginError, SystemFault, UserError
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


def failure(plugin: Any, method: str, error: BaseException) -> str:
    """The reason of a fault: the plugin, its distribution, the method and the exception."""
    return encodable(f"{origin_of(plugin)}: {method} raised {type(error).__name__}: {str(error)[:2000]}")


async def closed(plugin: Any) -> None:
    """Close a plugin. A failure is logged: it must not hide the error that ended the run."""
    try:
        await plugin.close()
    except Exception as error:
        log.warning("%s", failure(plugin, "close", error))


@contextmanager
def plugin_call(plugin: Any, method: str) -> Iterator[None]:
    """A context in which a plugin's method is called: an exception that passes, or an exit, names it."""
    try:
        yield
    except (Exception, SystemExit) as error:
        origin, where = origin_of(plugin), f"{origin_of(plugin)}: {method}"
        if isinstance(error, SystemExit):  # it would end the run without a word
            raise PluginError(f"{where} called sys.exit({error.code!r})", path=origin.path) from error
        if not isinstance(error, UserError) and f"in {where}" not in getattr(error, "__notes__", ()):
            error.add_note(f"in {where}")  # a UserError's message is complete
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
        origin, why = origin_of(plugin), f"{type(error).__name__}: {error}"
        fix = "make sure that what it connects to or reads is there, and check its settings"
        raise UserError(f"{origin} could not open", path=origin.path, why=why, fix=fix) from error
