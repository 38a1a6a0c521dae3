"""What a plugin's constructor is given besides its Config."""

from __future__ import annotations

from typing import Any, Protocol

from coterie.core.config import RunConfig


class Build(Protocol):
    """What a plugin's constructor is given besides its Config."""

    name: str
    """The instance's name in the configuration: the role, the reward, the tool."""
    path: str
    """Its dotted path in the configuration, for error messages."""
    run: RunConfig

    def make(self, kind: str, table: Any, path: str) -> Any:
        """Another component."""
