"""What of the plugin interface is deprecated: it works, a warning names its successor, and a later version
lacks it. Imports nothing of Coterie.

Nothing is deprecated today. A new entry of `DEPRECATIONS` is all that a deprecation takes: the deprecated
thing stays where it is until its entry and it are removed together. A setting is deprecated in its own
Config: `rate: float | None = Field(None, deprecated="write `learning_rate`; it goes with version 2.0")`.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import Literal

log = logging.getLogger("coterie")


@dataclass(frozen=True, slots=True)
class Deprecation:
    """A name, a hook or a member that plugins should no longer use."""

    what: Literal["name", "hook", "member"]
    """A name of `coterie`, a hook, or a member that a plugin of `kind` may have."""
    old: str
    new: str
    """What to write instead."""
    goes: str
    """The first version of the plugin API that lacks it: the next major one, e.g. "2.0"."""
    kind: str = ""

    def text(self) -> str:
        """The end of a warning: what is deprecated, when it goes, what to write."""
        thing = {"name": "coterie.", "hook": "hook ", "member": "member "}[self.what] + self.old
        return f"{thing} is deprecated and goes with version {self.goes} of the plugin API: write {self.new}"


DEPRECATIONS: tuple[Deprecation, ...] = ()
WARNED: set[tuple[str, str]] = set()
"""(plugin, text) of what this process has warned of."""


def deprecated(what: str, name: str, kind: str = "") -> Deprecation | None:
    """The entry of a name, a hook or a member; None: it isn't deprecated."""
    return next(
        (entry for entry in DEPRECATIONS if (entry.what, entry.old, entry.kind) == (what, name, kind)), None
    )


def members_of(kind: str) -> list[Deprecation]:
    """The deprecated members of a kind."""
    return [entry for entry in DEPRECATIONS if (entry.what, entry.kind) == ("member", kind)]


def warn(plugin: str, text: str) -> None:
    """Log a warning, once a plugin."""
    if (plugin, text) not in WARNED:
        WARNED.add((plugin, text))
        log.warning("%s: %s", plugin, text)


def warn_of_name(name: str) -> None:
    """Warn, once a package, that a module asks for a deprecated public name."""
    if entry := deprecated("name", name):
        frame = sys._getframe(2)  # above this function and `coterie.__getattr__`
        while frame.f_back and frame.f_globals.get("__name__", "").startswith("importlib"):
            frame = frame.f_back
        warn(f"plugin {frame.f_globals.get('__name__', '?').partition('.')[0]}", entry.text())
