"""Optional packages of the chosen engine and trainer, looked for before any model is loaded."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from coterie.core.config import RunConfig
from coterie.core.plugins.base import as_table, composed_fields
from coterie.discovery import plugins


@runtime_checkable
class ChecksPackages(Protocol):
    """A plugin's `Config` whose plugin needs an optional package."""

    def check_packages(self) -> None:
        """Raise MissingExtra for a package that is not installed; a class method."""


def check_packages(config: RunConfig) -> None:
    """Look for the packages that engine and trainer need, and so do their components.

    Raises:
        MissingExtra: the first that is not installed.
    """
    for kind in ("engine", "trainer"):
        _check(kind, getattr(config, kind))


def _check(kind: str, table: Any) -> None:
    table = as_table(table)
    if not isinstance(table, dict) or "type" not in table:
        return
    model = plugins().registry.config_of(kind, table["type"], path=f"{kind}.type")
    if isinstance(model, ChecksPackages):
        model.check_packages()
    for name, inner in composed_fields(model).items() if model is not None else ():
        _check(inner, table.get(name))
