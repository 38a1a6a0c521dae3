"""The environment variables that a configuration names, by the process that needs them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_NAME = re.compile(r"\$\{(\w+)\}")
_ENGINE = ("engine", "policies")
_RUN = ("trainer", "trackers", "executor", "cluster")
"""Tables that the run's own process alone reads."""


@dataclass(frozen=True, slots=True)
class NamedVariables:
    """Variables that settings name as `${NAME}`."""

    every: frozenset[str] = frozenset()
    """Those of a tool's `env` are left out: they may be ordinary ones, such as HOME."""
    engine: frozenset[str] = frozenset()
    sides: frozenset[str] = frozenset()
    """Of rollout sides, such as the key of a search tool; those of shared chat models are left out."""


def named_variables(table: Mapping[str, Any], shared: Collection[str]) -> NamedVariables:
    """The variables of a configuration.

    Args:
        table: the configuration's.
        shared: dotted paths of the tables that the account reads.
    """
    every: set[str] = set()
    engine: set[str] = set()
    sides: set[str] = set()
    for path, name in _named(table, ""):
        parts = path.split(".")
        if not (parts[0] == "tools" and "env" in parts):
            every.add(name)
        if parts[0] in _ENGINE:
            engine.add(name)
        elif parts[0] not in _RUN and not any(f"{path}.".startswith(f"{inside}.") for inside in shared):
            sides.add(name)
    return NamedVariables(frozenset(every), frozenset(engine), frozenset(sides))


def _named(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """(dotted path, variable) of each in a table."""
    if isinstance(value, str):
        yield from ((path, name) for name in _NAME.findall(value))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _named(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _named(inner, path)
