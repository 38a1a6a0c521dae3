"""What became of a plugin."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Report:
    """What became of one entry point or file."""

    name: str
    distribution: str
    version: str
    ok: bool = True
    errors: list[str] = field(default_factory=list)
    provides: dict[str, list[str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    """What works and should change: a slow import, what is deprecated."""
    hooks: list[str] = field(default_factory=list)
    """The hooks that it implements."""
    module: str = ""
    """The value of the entry point; of a file its module's name."""
    seconds: float = 0.0
    """What its import took."""
