"""Errors of settings name the plugin's recipe or overlay that has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from coterie.core.errors import ConfigError, UserError
from coterie.core.plugins import FILES
from coterie.discovery import plugins


@contextmanager
def layer_named(layers: Mapping[str, str]) -> Iterator[None]:
    """A context that notes the layer of the wrong key on a ConfigError, where a plugin registered the layer.

    Args:
        layers: by dotted path, the layer that set the value, e.g. `overlay gentle`.
    """
    try:
        yield
    except ConfigError as error:
        kind, _, name = layer_at(layers, error.path).partition(",")[0].partition(" ")
        note = _note(kind, name) if kind in FILES else ""
        if note and note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


def layer_at(layers: Mapping[str, str], path: str) -> str:
    """The layer that set the value at a dotted path, a value inside its table, or the innermost table around
    it; empty: none.

    Args:
        layers: by dotted path.
    """
    inside = next((layer for key, layer in layers.items() if key.startswith(f"{path}.")), "") if path else ""
    while path and path not in layers and not inside:
        path = path.rpartition(".")[0]
    return layers.get(path, inside)


def _note(kind: str, name: str) -> str:
    try:
        entry = plugins().registry.find(kind, name)
    except UserError:  # a file's, or a name that two plugins have
        return ""
    return "" if entry.distribution == "coterie" else f"in {entry.label}: {entry.target}"
