"""Plugins: their base class, their settings, their kinds. `coterie.discovery` finds and registers them."""

from __future__ import annotations

from coterie.core.plugins.base import (
    DECLARING as DECLARING,
    FILES as FILES,
    KINDS as KINDS,
    UNCONFIGURED as UNCONFIGURED,
    Component as Component,
    Composed as Composed,
    MayChange as MayChange,
    Plugin as Plugin,
    PluginConfig as PluginConfig,
    Table as Table,
    as_table as as_table,
    composed_fields as composed_fields,
)
