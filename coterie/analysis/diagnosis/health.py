"""A line of the diagnosis of a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """What was checked of a machine, and what came out."""

    name: str
    status: Literal["ok", "warning", "fault"]
    """`fault`: a run would meet it; `warning`: some run could."""
    says: str
    fix: str = ""
    """The fix; empty where it is ok."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What was measured, for JSON."""

    def as_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def ok(name: str, says: str, **facts: Any) -> HealthCheck:
    """A line on what is well."""
    return HealthCheck(name, "ok", says, "", facts)


def warning(name: str, says: str, fix: str, **facts: Any) -> HealthCheck:
    """A line on what some run could meet."""
    return HealthCheck(name, "warning", says, fix, facts)


def fault(name: str, says: str, fix: str, **facts: Any) -> HealthCheck:
    """A line on what a run would meet."""
    return HealthCheck(name, "fault", says, fix, facts)
