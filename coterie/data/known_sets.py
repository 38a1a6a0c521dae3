"""Known data sets as files: what `coterie data prepare NAME` writes."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from coterie.compose.builder import ComponentBuilder
from coterie.core.errors import PluginError
from coterie.core.plugins.origin import plugin_call
from coterie.core.types.splits import SPLITS, Record, Split
from coterie.discovery import plugins


def known_sets() -> list[str]:
    """The names of data sources that need no settings."""
    registry = plugins().registry
    names = []
    for name in registry.names("data_source"):
        try:
            source = registry.load("data_source", name)
        except PluginError:
            continue  # `coterie plugins` names what is broken
        if getattr(source, "published", False):
            names.append(name)
    return names


def records_of_set(name: str, settings: Mapping[str, Any]) -> tuple[dict[Split, list[Record]], list[str]]:
    """The records of a known set by split, and a note for each split that it lacks.

    Args:
        settings: of the data source, such as `file` or `train`.

    Raises:
        ConfigError: a setting is wrong, the set can't be loaded, or no split has records.
        DataError: a row is not as the set publishes it.
        MissingExtra: `datasets` is not installed.
    """
    without_run: Any = SimpleNamespace(data=None, sandbox=None)
    source = ComponentBuilder(run=without_run).make("data_source", {"type": name, **settings}, name)
    given = [split for split in SPLITS if split in settings]
    by_split: dict[Split, list[Record]] = {}
    notes: list[str] = []
    for split in SPLITS:
        if given and split not in given:
            notes.append(f"{split} is left out: no rows are chosen for it")
            continue
        with plugin_call(source, "records"):
            by_split[split] = list(source.records(split))
    return by_split, notes
