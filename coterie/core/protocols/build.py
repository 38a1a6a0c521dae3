"""The second argument of a plugin's constructor."""

from __future__ import annotations

from typing import Any, Protocol

from coterie.core.config import RunConfig


class Build(Protocol):
    """The second argument of a plugin's constructor, after its `Config`."""

    name: str
    """The instance's name in the configuration, e.g. of the role, the reward or the tool."""
    path: str
    """The instance's dotted path in the configuration, for error messages."""
    run: RunConfig

    def make(self, kind: str, table: Any, path: str) -> Any:
        """Make another component of a kind from its table; `path` is the table's, for error messages."""
