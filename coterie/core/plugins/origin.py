"""Where a component comes from: every error that a plugin causes names it."""

from __future__ import annotations

from types import TracebackType
from typing import Any, NamedTuple

from coterie.core.errors import UserError


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
    return f"{origin_of(plugin)}: {method} raised {type(error).__name__}: {error}"


class plugin_call:
    """A context in which a plugin's method is called. It notes the plugin on an exception that passes."""

    __slots__ = ("_method", "_plugin")

    def __init__(self, plugin: Any, method: str) -> None:
        self._plugin, self._method = plugin, method

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, Exception) and not isinstance(error, UserError):  # a message of its own
            note = f"in {origin_of(self._plugin)}: {self._method}"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
