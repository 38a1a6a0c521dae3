"""Warnings about settings that a Config declares as deprecated: `Field(None, deprecated="write `rate`")`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from coterie import deprecations
from coterie.compose.tables import model_of


def warn_of_settings(model: type[BaseModel], table: Any, path: str, who: str) -> None:
    """Warn of each setting of a table that is stated and deprecated, and of those in its inner tables.

    Args:
        path: dotted path of the table; empty: the top level.
        who: what declares the settings, e.g. `reward 'judge' of my-package`.
    """
    if not isinstance(table, Mapping):
        return
    for name, info in model.model_fields.items():
        key = info.alias or name
        if key not in table:
            continue
        where = f"{path}.{key}" if path else key
        if info.deprecated:
            text = (
                info.deprecated
                if isinstance(info.deprecated, str)
                else getattr(info.deprecated, "message", "")
            )
            deprecations.warn(f"{where} ({who})", f"this setting is deprecated: {text or 'leave it out'}")
        if (inner := model_of(info.annotation)) is not None:
            warn_of_settings(inner, table[key], where, who)
