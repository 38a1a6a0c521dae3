"""The merging of layers, with the origin of each value.

Tables are merged key by key; a table whose `type` changes is replaced, since it belongs to another plugin.
`null` removes an entry by name (a role, a policy, a reward). In place of a name, `*` sets all entries.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coterie.compose.tables import MAPS, TABLES, TEAM_KEYS
from coterie.core.config import RunConfig
from coterie.core.errors import ConfigError
from coterie.core.plugins import Table, as_table
from coterie.recipes.overlays import carry_policies, is_entry, matching, policy_of, roles_of

EVERY_SCALE = "every_scale"
ENTRY_TABLES = {("team",), ("team", "roles"), ("policies",), *((name,) for name in MAPS)}
"""Tables of named entries, and the table around the roles: they are merged entry by entry from the start."""


def flatten(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, leaf) of a nested table; lists are leaves."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flatten(inner, f"{at}.{key}" if at else str(key))
    else:
        yield at, value


def copied(value: Any) -> Any:
    """The value with dicts and lists of its own."""
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, list) else value


def check_scales(scales: Any) -> None:
    """Refuse `scales` that isn't a table of tables."""
    blocks = scales if isinstance(scales, Mapping) else {"": scales}
    for name, block in blocks.items():
        if block is not None and not isinstance(block, Mapping):
            path = ".".join(filter(None, ("scales", str(name))))
            raise ConfigError("a scale is a table of settings by name", path=path, why=f"got {block!r}")


def role_policy(value: Any, path: tuple[str, ...]) -> Any:
    """The policy that a role's table names; `{role}` stands for the role's name."""
    if value is not None and not isinstance(value, (str, int)):
        raise ConfigError(
            "a role's policy is a name",
            path=".".join(path),
            why=f"got {value!r}",
            fix='quote it: policy: "{role}"',
        )
    name = value.replace("{role}", path[2]) if isinstance(value, str) else value
    if isinstance(name, str) and ("{" in name or "}" in name):
        fix = "`{role}` is the only placeholder; it stands for the role's name"
        raise ConfigError(f"the policy's name {value!r} has a brace", path=".".join(path), fix=fix)
    return name


class Layers:
    """The merged table, with the origin of every leaf."""

    def __init__(self) -> None:
        self.name = ""
        self.table: Table = {}
        self.every_scale: list[tuple[Table, str]] = []
        """The `every_scale` blocks, which are added after the scale, with their origins."""
        self._origins: dict[str, str] = {}
        self._layer = 0
        self._layers: dict[str, int] = {}
        """By dotted path of a leaf, the number of the layer that set it."""
        self.dropped: dict[str, Any] = {}
        """By dotted path, the values that reported layers dropped by a change of a component's type."""
        self._report = False
        self._peers: set[str] = set()
        """Origins of the overlays that are being merged: none may change what another one set."""

    def copy(self) -> Layers:
        """Layers that can be merged and used up in the place of these."""
        other = copy.copy(self)
        other.table = copied(self.table)
        other.every_scale = [(copied(block), origin) for block, origin in self.every_scale]
        other._origins, other._layers = dict(self._origins), dict(self._layers)
        other.dropped, other._peers = dict(self.dropped), set(self._peers)
        return other

    def add(self, layer: Mapping[str, Any], origin: str, *, report: bool = False, same: bool = False) -> None:
        """Merge a layer; its patterns precede its names.

        Args:
            report: record what it drops in `dropped`.
            same: it is a part of the layer before it, as each override is of all overrides.
        """
        self._report = report
        self._layer += not (same or self._peers)
        self._merge(self.table, layer, origin, ())

    def add_file(self, table: Table, origin: str, late_origin: str) -> None:
        """Merge a file's table; its `every_scale` block waits for the scale, with an origin of its own."""
        block = table.pop(EVERY_SCALE, {})
        if block is None:
            self.every_scale.clear()
        elif not isinstance(block, Mapping):
            raise ConfigError("every_scale is not a table", path=EVERY_SCALE, why=f"got {block!r}")
        check_scales(table.get("scales"))
        for name in table.get("scales") or {}:
            matching(str(name), self.table.get("scales") or {}, ("scales",))  # a pattern must match a scale
        self.every_scale.append((dict(block or {}), late_origin))
        self.add(table, origin)

    def overlay(self, overlays: Sequence[tuple[Table, str]]) -> None:
        """Merge overlays, given as (table, origin), from left to right.

        Raises:
            ConfigError: two of them set one key differently, or a pattern matches nothing.
        """
        if not overlays:
            return
        self._peers = {origin for _, origin in overlays}
        self._layer += 1
        before, summary = policy_of(self.table), [str(self.table.get("summary", ""))]
        for table, origin in overlays:  # the roles first, so that the policies are there that others change
            summary.append(str(table.pop("summary", "")))
            self.add({"team": {"roles": roles_of(table)}}, origin)
        carry_policies(self.table, (block for block, _ in self.every_scale), before, self._origins)
        for table, origin in overlays:
            self.add_file(table, origin, origin)
        # The blocks are merged after the scale; merged here, on a copy, they show where overlays disagree.
        trial = self.copy()
        for block, origin in trial.every_scale:
            trial.add(block, origin)
        self._peers = set()
        self.add({"summary": " ".join(filter(None, summary))}, overlays[-1][1])

    def _merge(self, into: Table, layer: Mapping[str, Any], origin: str, at: tuple[str, ...]) -> None:
        for pattern, value in sorted(layer.items(), key=lambda item: "*" not in str(item[0])):
            for key in matching(str(pattern), into, at):
                self._set(into, key, value, origin, (*at, key))

    def _set(self, into: Table, key: str, value: Any, origin: str, path: tuple[str, ...]) -> None:
        if is_component(path):
            value = as_table(value)
        if path[:2] == ("team", "roles") and path[3:] == ("policy",):
            value = role_policy(value, path)
        if value is None and is_entry(path):  # inside `scales`, null is kept until the scale is merged
            self._drop_origins(path, value, origin)
            self._origins[".".join(path)] = origin
            self._layers[".".join(path)] = self._layer
            into.pop(key, None)
            return
        old = into.get(key)
        if old is None and isinstance(value, Mapping) and path in ENTRY_TABLES:
            default: Any = any("*" in str(name) for name in value) and path[0] in MAPS
            old = into[key] = (
                RunConfig.model_fields[key].get_default(call_default_factory=True) if default else {}
            )
        if isinstance(value, Mapping) and isinstance(old, dict) and not _changes_type(old, value):
            self._merge(old, value, origin, path)
            return
        if self._report and is_component(path) and isinstance(value, Mapping) and isinstance(old, dict):
            leaves = flatten({name: item for name, item in old.items() if name != "type"}, ".".join(path))
            self.dropped |= {leaf: item for leaf, item in leaves if item is not None}
        if path[:2] == ("team", "roles") and isinstance(value, Mapping) and isinstance(old, dict):
            # The keys that the team reads (policy, tools) survive a change of the role's type.
            value = {**{name: old[name] for name in TEAM_KEYS if name in old}, **value}
        self._drop_origins(path, value, origin)
        into[key] = copied(dict(value) if isinstance(value, Mapping) else value)
        for leaf, _ in flatten(into[key]):
            name = ".".join(filter(None, (*path, leaf)))
            self._origins[name], self._layers[name] = origin, self._layer

    def _drop_origins(self, path: tuple[str, ...], value: Any, origin: str) -> None:
        """Forget the origins at and below a path, where a layer puts another value.

        Raises:
            ConfigError: the old value is that of another overlay, and differs.
        """
        prefix, new = ".".join(path), dict(flatten(value, ".".join(path)))
        for leaf in _at_or_below(prefix, self._origins):
            other, old = self._origins.pop(leaf), self._value(leaf)
            self._layers.pop(leaf, None)
            if origin != other and {origin, other} <= self._peers and old != new.get(leaf, ...):
                raise ConfigError(
                    f"{other} and {origin} set one key differently",
                    path=leaf,
                    why=f"{other} has {old!r}, {origin} has {new.get(leaf, value)!r}",
                    fix="leave one of them out",
                )

    def _value(self, path: str) -> Any:
        value: Any = self.table
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def layer(self, path: str) -> int:
        """The number of the latest layer that set something at or below a dotted path; 0: none did."""
        return max(self._numbers(path), default=0)

    def layers_in(self, path: str) -> int:
        """How many layers set what there is at and below a dotted path."""
        return len({*self._numbers(path)})

    def forget(self, path: str) -> None:
        """Drop the origins at and below a dotted path whose value is taken out."""
        for leaf in _at_or_below(path, self._origins):
            del self._origins[leaf]
            self._layers.pop(leaf, None)

    def _numbers(self, path: str) -> list[int]:
        return [self._layers[leaf] for leaf in _at_or_below(path, self._layers)]

    @property
    def origins(self) -> Mapping[str, str]:
        """By dotted path, the layer that set the value."""
        return self._origins

    def origin(self, path: str) -> str:
        """The layer that set the value at a dotted path, or the innermost table around it."""
        while path:
            if path in self._origins:
                return self._origins[path]
            path = path.rpartition(".")[0]
        return "default"


def _at_or_below(path: str, leaves: Mapping[str, Any]) -> list[str]:
    below = f"{path}."
    return [leaf for leaf in leaves if leaf.startswith(below) or leaf == path]


def is_component(path: tuple[str, ...]) -> bool:
    """Whether the table at this path names a plugin by its `type`."""
    return (len(path) == 1 and path[0] in TABLES) or (len(path) == 2 and path[0] in MAPS)


def _changes_type(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return "type" in new and "type" in old and new["type"] != old["type"]
