"""Plugins: their base class, discovery, the registry."""

from __future__ import annotations

from coterie.core.plugins.base import (
    Component as Component,
    Composed as Composed,
    MayChange as MayChange,
    Plugin as Plugin,
    PluginConfig as PluginConfig,
    Table as Table,
    as_table as as_table,
    composed_fields as composed_fields,
)
from coterie.core.plugins.kinds import (
    DECLARING as DECLARING,
    FILES as FILES,
    KINDS as KINDS,
    UNCONFIGURED as UNCONFIGURED,
)
from coterie.core.plugins.manager import (
    GROUP as GROUP,
    KIND_OF as KIND_OF,
    Plugins as Plugins,
    Report as Report,
    plugins as plugins,
)
from coterie.core.plugins.registry import Entry as Entry, Registry as Registry, import_object as import_object
