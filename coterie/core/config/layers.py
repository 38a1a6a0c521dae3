"""The layers of a configuration: recipes, scales and overrides, merged with the origin of each value.

From lowest to highest: the default types, the recipes that a recipe `extends`, the recipe, the overlays (see
`overlays.py`), the `scales.<scale>` block, the `every_scale` blocks (which hold with and without a scale), the
overrides. Tables are merged key by key; a table whose `type` changes is replaced, since it belongs to another
plugin. `null` removes an entry by name (a role, a policy, a reward). In place of a name, `*` sets all entries.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from coterie.core.config.overlays import carry_policies, current, is_entry, matching, names, policy_of
from coterie.core.config.schema import DEFAULT_TYPES, MAPS, TABLES, RoleConfig, RunConfig
from coterie.core.config.validation import validate
from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins import as_table, plugins

Table = dict[str, Any]
TEAM_KEYS = tuple(RoleConfig.model_fields)
"""Keys of a role's table that the team reads, and not the role's plugin."""
EVERY_SCALE = "every_scale"
ENTRY_TABLES = {("team",), ("team", "roles"), ("policies",), *((name,) for name in MAPS)}
"""Tables of named entries, and the table around the roles: they are merged entry by entry from the start."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A configuration with the origins of its values."""

    name: str
    config: RunConfig
    table: Table
    """The merged layers, with the defaults of `RunConfig`."""
    origins: dict[str, str]
    """The layer of each value, by dotted path."""

    def text(self) -> str:
        """The configuration as YAML, as in a run's `config.yaml`."""
        return to_yaml({"name": self.name, **self.table})

    def digest(self) -> str:
        """sha256 of the settings, which decide the results."""
        return table_digest(self.table)


def table_digest(table: Mapping[str, Any]) -> str:
    """sha256 of a configuration table without its name and summary."""
    kept = {key: value for key, value in table.items() if key not in ("summary", "name")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()


def load(
    source: str | Path | Mapping[str, Any] | RunConfig,
    *,
    overrides: Sequence[str] = (),
    scale: str | None = None,
    overlays: Sequence[str] = (),
) -> Resolved:
    """Resolve a recipe's name, a YAML file, a run folder or a table.

    Args:
        overlays: names of overlays or their YAML files; they are applied from left to right.

    Raises:
        ConfigError: an unknown recipe, overlay or scale, two overlays that contradict each other, bad YAML, a
            wrong key or value; its path names the key.
    """
    return resolve(gather(source, overlays), overrides=overrides, scale=scale)


def gather(source: str | Path | Mapping[str, Any] | RunConfig, overlays: Sequence[str] = ()) -> Layers:
    """The layers up to the overlays, for `resolve`."""
    if isinstance(source, RunConfig):
        source = source.model_dump(mode="json")
    merged = Layers()
    merged.add(DEFAULT_TYPES, "default")
    source, old = current(source)
    if isinstance(source, Mapping):
        name = str(source.get("name", "run"))
        _extend(merged, copy.deepcopy(dict(source)), "python", None, ())
    else:
        path, origin, name = locate(source)
        _extend(merged, read_yaml(path), origin, path, ())
    chosen = names([*old, *names(overlays)])
    stems = [Path(overlay).stem if overlay.endswith((".yaml", ".yml")) else overlay for overlay in chosen]
    merged.name = "_".join((str(merged.table.pop("name", name)), *stems))
    merged.overlay([read_overlay(overlay) for overlay in chosen])
    return merged


def resolve(merged: Layers, *, overrides: Sequence[str] = (), scale: str | None = None) -> Resolved:
    """The configuration of gathered layers, which are used up, with a scale and overrides."""
    name, scales = merged.name, merged.table.pop("scales", {})
    if scale is not None:
        if scale not in scales:
            fix = did_you_mean(scale, scales)
            raise ConfigError(f"{name} has no scale '{scale}'", path="--scale", fix=fix)
        merged.add(scales[scale] or {}, f"scale {scale}")
    for block, origin in merged.every_scale:
        merged.add(block, origin)
    # A change of type replaces its table, so it precedes the overrides of the new table's keys.
    for override in sorted(overrides, key=lambda text: not text.partition("=")[0].endswith(".type")):
        key = override.partition("=")[0]
        merged.add(parse_override(override), f"override {key}" if "*" in key else "override")
    config: RunConfig = validate(RunConfig, merged.table)
    table = config.model_dump(mode="json")
    origins = {path: merged.origin(path) for path, _ in flatten(table)}
    return Resolved(name, config, table, origins)


def read_overlay(source: str) -> tuple[Table, str]:
    """(table, origin) of an overlay, given its name or its YAML file.

    Raises:
        ConfigError: there is no such overlay or file, or it has a key of recipes only.
    """
    path, origin, _ = locate(source, "overlay")
    table = read_yaml(path)
    for key in {"extends", "with", "name"} & set(table):
        raise ConfigError(f"an overlay has no '{key}'", path=f"{origin}: {key}")
    return table, origin


def locate(source: str | Path, kind: str = "recipe") -> tuple[Path, str, str]:
    """The file, the origin and the name of a recipe or overlay, given its name, its YAML file or a run folder.

    Raises:
        ConfigError: there is no such recipe, overlay or file.
    """
    source, _ = current(source) if kind == "recipe" else (source, ())
    text = str(source)
    if text.endswith((".yaml", ".yml")) or isinstance(source, Path) or "/" in text:
        path = Path(source)
        if path.is_dir() and (path / "config.yaml").is_file():
            path = path / "config.yaml"
        if not path.is_file():
            raise ConfigError(f"no such {kind} file: {path}")
        return path, f"file {path}", path.parent.name if path.name == "config.yaml" else path.stem
    registry = plugins().registry
    if text not in registry.names(kind):
        fix = did_you_mean(text, registry.names(kind)) + "  (a file's name ends in .yaml)"
        raise ConfigError(f"unknown {kind} '{text}'", fix=fix)
    return resource_path(registry.find(kind, text).target), f"{kind} {text}", text


def resource_path(target: Any) -> Path:
    """The file that a registered target names: a path, or `package:file.yaml`."""
    package, colon, file = str(target).partition(":")
    if not colon or Path(str(target)).exists():
        return Path(str(target))
    return Path(str(files(package).joinpath(file)))


def _extend(merged: Layers, table: Table, origin: str, path: Path | None, seen: tuple[str, ...]) -> None:
    base, overlays = table.pop("extends", None), names(table.pop("with", None) or ())
    if base is not None:
        base, old = current(_beside(path, str(base)))
        file, base_origin, _ = locate(base)
        if str(file) in seen:
            raise ConfigError(f"{origin} extends itself through {base}", path="extends")
        _extend(merged, read_yaml(file), base_origin, file, (*seen, str(file)))
        merged.overlay([read_overlay(_beside(path, name)) for name in names([*old, *overlays])])
        merged.table.pop("summary", None)
    elif overlays:
        raise ConfigError("`with` needs `extends`", path="with", fix="extends: the recipe under the overlays")
    merged.add_file(table, origin, EVERY_SCALE)


def _beside(path: Path | None, name: str) -> str:
    """A file that another file names, from that file's folder; a registered name as it is."""
    return str(path.parent / name) if path is not None and name.endswith((".yaml", ".yml")) else name


class Layers:
    """The merged table, with the origin of every leaf."""

    def __init__(self) -> None:
        self.name = ""
        self.table: Table = {}
        self.every_scale: list[tuple[Table, str]] = []
        """The `every_scale` blocks, which are added after the scale, with their origins."""
        self._origins: dict[str, str] = {}
        self._peers: set[str] = set()
        """Origins of the overlays that are being merged: none may change what another one set."""

    def add(self, layer: Mapping[str, Any], origin: str) -> None:
        """Merge a layer; its patterns precede its names."""
        self._merge(self.table, layer, origin, ())

    def add_file(self, table: Table, origin: str, late_origin: str) -> None:
        """Merge a file's table; its `every_scale` block waits for the scale, with an origin of its own."""
        block = table.pop(EVERY_SCALE, {})
        if block is None:
            self.every_scale.clear()
        elif not isinstance(block, Mapping):
            raise ConfigError("every_scale is not a table", path=EVERY_SCALE, why=f"got {block!r}")
        self.every_scale.append((dict(block or {}), late_origin))
        self.add(table, origin)

    def overlay(self, overlays: Sequence[tuple[Table, str]]) -> None:
        """Merge overlays, given as (table, origin), from left to right.

        Raises:
            ConfigError: two of them set one key differently, or a pattern matches nothing.
        """
        self._peers = {origin for _, origin in overlays}
        before, summary = policy_of(self.table), [str(self.table.get("summary", ""))]
        for table, origin in overlays:  # the roles first, so that the policies are there that others change
            summary.append(str(table.pop("summary", "")))
            self.add({"team": {"roles": (table.get("team") or {}).get("roles") or {}}}, origin)
        carry_policies(self.table, (block for block, _ in self.every_scale), before, self._origins)
        for table, origin in overlays:
            self.add_file(table, origin, origin)
        trial = copy.deepcopy(self)
        for block, origin in trial.every_scale:
            trial.add(block, origin)
        if overlays:
            self.table["summary"] = " ".join(filter(None, summary))
        self._peers = set()

    def _merge(self, into: Table, layer: Mapping[str, Any], origin: str, at: tuple[str, ...]) -> None:
        for pattern, value in sorted(layer.items(), key=lambda item: "*" not in str(item[0])):
            for key in matching(str(pattern), into, at):
                self._set(into, key, value, origin, (*at, key))

    def _set(self, into: Table, key: str, value: Any, origin: str, path: tuple[str, ...]) -> None:
        if is_component(path):
            value = as_table(value)
        if path[:2] == ("team", "roles") and path[3:] == ("policy",) and isinstance(value, str):
            value = value.replace("{role}", path[2])
        if value is None and is_entry(path):  # inside `scales`, null is kept until the scale is merged
            self._drop_origins(path, value, origin)
            self._origins[".".join(path)] = origin
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
        if path[:2] == ("team", "roles") and isinstance(value, Mapping) and isinstance(old, dict):
            # The keys that the team reads (policy, tools) survive a change of the role's type.
            value = {**{name: old[name] for name in TEAM_KEYS if name in old}, **value}
        self._drop_origins(path, value, origin)
        into[key] = copy.deepcopy(dict(value) if isinstance(value, Mapping) else value)
        for leaf, _ in flatten(into[key]):
            self._origins[".".join(filter(None, (*path, leaf)))] = origin

    def _drop_origins(self, path: tuple[str, ...], value: Any, origin: str) -> None:
        """Forget the origins at and below a path, where a layer puts another value.

        Raises:
            ConfigError: the old value is that of another overlay, and differs.
        """
        prefix, new = ".".join(path), dict(flatten(value, ".".join(path)))
        for leaf in [leaf for leaf in self._origins if leaf == prefix or leaf.startswith(prefix + ".")]:
            other, old = self._origins.pop(leaf), self._value(leaf)
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

    def origin(self, path: str) -> str:
        """The layer that set the value at a dotted path, or the innermost table around it."""
        while path:
            if path in self._origins:
                return self._origins[path]
            path = path.rpartition(".")[0]
        return "default"


def is_component(path: tuple[str, ...]) -> bool:
    """Whether the table at this path names a plugin by its `type`."""
    return (len(path) == 1 and path[0] in TABLES) or (len(path) == 2 and path[0] in MAPS)


def _changes_type(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return "type" in new and "type" in old and new["type"] != old["type"]


def flatten(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, leaf) of a nested table; lists are leaves."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flatten(inner, f"{at}.{key}" if at else str(key))
    else:
        yield at, value


def parse_override(text: str) -> Table:
    """`a.b=1e-5` -> {"a": {"b": 1e-05}}. The value is YAML 1.2.

    Raises:
        ConfigError: no `=`, an empty key, or a value that is not YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not key or any(not part for part in key.split(".")):
        raise ConfigError(f"'{text}' is not of the form key=value", fix="e.g. schedule.steps=20")
    try:
        parsed = YAML(typ="safe", pure=True).load(value)
    except YAMLError as error:
        why = str(error).split("\n")[0]
        raise ConfigError(f"the value {value!r} is not YAML", path=key, why=why) from None
    table: Any = parsed
    for part in reversed(key.split(".")):
        table = {part: table}
    return dict(table)


def read_yaml(path: Path) -> Table:
    """A YAML file's table.

    Raises:
        ConfigError: the file is unreadable, is not YAML, repeats a key, or is not a table.
    """
    try:
        value = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read", why=str(error)) from None
    except YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML", why=" ".join(str(error).split())) from None
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path} is not a table", why=f"it is a {type(value).__name__}")
    table: Table = json_like(value)
    return table


def json_like(value: Any) -> Any:
    """The value with plain dicts and lists, and keys as text."""
    if isinstance(value, Mapping):
        return {str(key): json_like(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_like(inner) for inner in value]
    return value


def to_yaml(table: Mapping[str, Any]) -> str:
    """A table as block-style YAML."""
    stream = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.dump(json_like(table), stream)
    return stream.getvalue()
