"""Settings that exclude each other: those of the latest layer replace those of the layers below it.

`schedule.steps=20` over a recipe with `epochs` means twenty steps. A schema declares such settings
(`PluginConfig.exclusive`, `only_with`). Within one layer nothing is replaced: there the schema's own check
refuses what can't be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.compose.layer_errors import layer_at
from coterie.compose.tables import component_tables
from coterie.core.config import ScheduleConfig
from coterie.core.errors import CoterieError
from coterie.core.plugins import Table, composed_fields
from coterie.discovery import plugins
from coterie.recipes.merging import Layers


@dataclass(frozen=True, slots=True)
class Replaced:
    """A setting that a later layer's replaced."""

    path: str
    value: Any
    origin: str
    by: str
    """The path of the setting in its place."""
    by_origin: str

    def __str__(self) -> str:
        value = "" if isinstance(self.value, Mapping) else f"={self.value}"
        return f"{self.path}{value} of {self.origin} is replaced by {self.by} ({self.by_origin})"


@dataclass(frozen=True, slots=True)
class _Declared:
    """A table of the configuration, and what its schema declares."""

    table: Table
    path: str
    schema: Any

    def layer(self, merged: Layers, key: str) -> int:
        """The number of the latest layer that set a key; 0: none did."""
        value = self.table.get(key)
        return 0 if value is None or value in ("", []) else merged.layer(f"{self.path}.{key}")

    def replaced(self, merged: Layers) -> Iterator[tuple[str, str]]:
        """(key, key in its place)."""
        only_with: Mapping[str, str] = getattr(self.schema, "only_with", {})
        for alternatives in self.schema.exclusive:
            keys = {key: alternative for alternative in alternatives for key in alternative.split()}
            layers = {key: layer for key in keys if (layer := self.layer(merged, key))}
            if not layers:
                continue
            latest = max(layers.values())
            by = next(key for key, layer in layers.items() if layer == latest)
            stay = {keys[key] for key, layer in layers.items() if layer == latest}
            dependent = [key for key, owner in only_with.items() if owner in ("", *keys)]
            layers |= {key: layer for key in dependent if 0 < (layer := self.layer(merged, key)) < latest}
            yield from ((key, by) for key in layers if keys.get(only_with.get(key, key)) not in stay)


def replace(merged: Layers, keep: tuple[str, ...] = ()) -> list[Replaced]:
    """Take out what later layers replaced, and return it.

    Args:
        keep: dotted paths of settings that stay.
    """
    gone = []
    for each in _tables(merged):
        for key, by in list(each.replaced(merged)):
            path, place = f"{each.path}.{key}", f"{each.path}.{by}"
            if path not in keep and key in each.table:
                origins = [layer_at(merged.origins, name) or "default" for name in (path, place)]
                gone.append(Replaced(path, each.table.pop(key), origins[0], place, origins[1]))
                merged.forget(path)
    return gone


def _tables(merged: Layers) -> Iterator[_Declared]:
    """Every table whose schema declares settings that exclude each other."""
    schedule = merged.table.get("schedule")
    if isinstance(schedule, dict):
        yield _Declared(schedule, "schedule", ScheduleConfig)
    for each in component_tables(merged.table):
        yield from _component(merged, each.table, each.path, each.kind)


def _component(merged: Layers, table: Any, path: str, kind: str) -> Iterator[_Declared]:
    """A component's table, and those of the components inside it."""
    if not isinstance(table, dict) or merged.layers_in(path) < 2:
        return  # one layer wrote it
    name = path.rpartition(".")[2]
    registry = plugins().registry
    plugin = table.get("type", name if name in registry.names(kind) else None)
    try:
        model = registry.config_of(kind, plugin) if isinstance(plugin, str) else None
        inside = composed_fields(model) if model is not None else {}
    except (CoterieError, AttributeError):  # told when the component is made
        return
    if getattr(model, "exclusive", ()):
        yield _Declared(table, path, model)
    for key, inner in inside.items():
        yield from _component(merged, table.get(key), f"{path}.{key}", inner)
