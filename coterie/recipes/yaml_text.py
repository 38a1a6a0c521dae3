"""A configuration's table as YAML, and as dotted paths."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

from ruamel.yaml import YAML

from coterie.core.config import Resolved


def flatten(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, leaf) of a nested table; lists are leaves."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flatten(inner, f"{at}.{key}" if at else str(key))
    else:
        yield at, value


def json_like(value: Any) -> Any:
    """The value with plain dicts and lists, and keys as text."""
    if isinstance(value, Mapping):
        return {str(key): json_like(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_like(inner) for inner in value]
    return value


def config_text(resolved: Resolved) -> str:
    """A configuration as YAML, as in a run's `config.yaml`."""
    return to_yaml({"name": resolved.name, **resolved.table})


def to_yaml(table: Mapping[str, Any]) -> str:
    """A table as block-style YAML."""
    stream = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.dump(json_like(table), stream)
    return stream.getvalue()
