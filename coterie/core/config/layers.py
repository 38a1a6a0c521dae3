"""The layers of a configuration: recipes, scales and overrides, merged with the origin of each value.

From lowest to highest: the default types, the recipes that a recipe `extends`, the recipe, its
`scales.<scale>` block, its `every_scale` block (which holds with and without a scale), the overrides. Tables
are merged key by key; a table whose `type` changes is replaced, since it belongs to another plugin. `null`
removes an entry by name (a role, a policy, a reward).
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

from coterie.core.config.schema import DEFAULT_TYPES, MAPS, TABLES, RoleConfig, RunConfig
from coterie.core.config.validation import validate
from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins import as_table, plugins

Table = dict[str, Any]
TEAM_KEYS = tuple(RoleConfig.model_fields)
"""Keys of a role's table that the team reads, and not the role's plugin."""
EVERY_SCALE = "every_scale"


@dataclass(frozen=True, slots=True)
class RecipeInfo:
    """A registered recipe."""

    name: str
    summary: str
    path: str
    distribution: str


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
) -> Resolved:
    """Resolve a recipe's name, a YAML file, a run folder or a table.

    Raises:
        ConfigError: an unknown recipe or scale, bad YAML, a wrong key or value; its path names the key.
    """
    if isinstance(source, RunConfig):
        source = source.model_dump(mode="json")
    merged = _Layers()
    merged.add(DEFAULT_TYPES, "default")
    if isinstance(source, Mapping):
        name = str(source.get("name", "run"))
        _extend(merged, copy.deepcopy(dict(source)), "python", None, ())
    else:
        path, origin, name = locate(source)
        _extend(merged, read_yaml(path), origin, path, ())
    scales = merged.table.pop("scales", {})
    every_scale = merged.table.pop(EVERY_SCALE, None) or {}
    if not isinstance(every_scale, Mapping):
        raise ConfigError("every_scale is not a table", path=EVERY_SCALE, why=f"got {every_scale!r}")
    name = str(merged.table.pop("name", name))
    if scale is not None:
        if scale not in scales:
            fix = did_you_mean(scale, scales)
            raise ConfigError(f"{name} has no scale '{scale}'", path="--scale", fix=fix)
        merged.add(scales[scale] or {}, f"scale {scale}")
    merged.add(every_scale, EVERY_SCALE)
    # A change of type replaces its table, so it precedes the overrides of the new table's keys.
    for override in sorted(overrides, key=lambda text: not text.partition("=")[0].endswith(".type")):
        merged.add(parse_override(override), "override")
    config: RunConfig = validate(RunConfig, merged.table)
    table = config.model_dump(mode="json")
    origins = {path: merged.origin(path) for path, _ in flatten(table)}
    return Resolved(name, config, table, origins)


def recipes() -> list[RecipeInfo]:
    """Every registered recipe."""
    infos = []
    for entry in plugins().registry.entries("recipe"):
        path = resource_path(entry.target)
        summary = str(read_yaml(path).get("summary", ""))
        infos.append(RecipeInfo(entry.name, summary, str(path), entry.distribution))
    return infos


def locate(source: str | Path) -> tuple[Path, str, str]:
    """The file, the origin and the name of a recipe, given its name, its YAML file or a run folder.

    Raises:
        ConfigError: there is no such recipe or file.
    """
    text = str(source)
    if text.endswith((".yaml", ".yml")) or isinstance(source, Path) or "/" in text:
        path = Path(source)
        if path.is_dir() and (path / "config.yaml").is_file():
            path = path / "config.yaml"
        if not path.is_file():
            raise ConfigError(f"no such recipe file: {path}")
        return path, f"file {path}", path.parent.name if path.name == "config.yaml" else path.stem
    registry = plugins().registry
    if text not in registry.names("recipe"):
        fix = did_you_mean(text, registry.names("recipe")) + "  (a file's name ends in .yaml)"
        raise ConfigError(f"unknown recipe '{text}'", fix=fix)
    return resource_path(registry.find("recipe", text).target), f"recipe {text}", text


def resource_path(target: Any) -> Path:
    """The file that a registered target names: a path, or `package:file.yaml`."""
    package, colon, file = str(target).partition(":")
    if not colon or Path(str(target)).exists():
        return Path(str(target))
    return Path(str(files(package).joinpath(file)))


def _extend(merged: _Layers, table: Table, origin: str, path: Path | None, seen: tuple[str, ...]) -> None:
    base = table.pop("extends", None)
    if base is not None:
        base_file = path.parent / str(base) if path is not None else Path(str(base))
        file, base_origin, _ = locate(base_file if str(base).endswith((".yaml", ".yml")) else str(base))
        if str(file) in seen:
            raise ConfigError(f"{origin} extends itself through {base}", path="extends")
        _extend(merged, read_yaml(file), base_origin, file, (*seen, str(file)))
        merged.table.pop("summary", None)
    merged.add(table, origin)


class _Layers:
    """The merged table, with the origin of every leaf."""

    def __init__(self) -> None:
        self.table: Table = {}
        self._origins: dict[str, str] = {}

    def add(self, layer: Mapping[str, Any], origin: str) -> None:
        self._merge(self.table, layer, origin, ())

    def _merge(self, into: Table, layer: Mapping[str, Any], origin: str, at: tuple[str, ...]) -> None:
        for key, value in layer.items():
            path = (*at, str(key))
            if is_component(path):
                value = as_table(value)
            if value is None and is_entry(path):  # inside `scales`, null is kept until the scale is merged
                self._drop_origins(path)
                into.pop(key, None)
                continue
            old = into.get(key)
            if isinstance(value, Mapping) and isinstance(old, dict) and not _changes_type(old, value):
                self._merge(old, value, origin, path)
                continue
            if path[:2] == ("team", "roles") and isinstance(value, Mapping) and isinstance(old, dict):
                # The keys that the team reads (policy, tools) survive a change of the role's type.
                value = {**{name: old[name] for name in TEAM_KEYS if name in old}, **value}
            self._drop_origins(path)
            into[str(key)] = copy.deepcopy(dict(value) if isinstance(value, Mapping) else value)
            for leaf, _ in flatten(into[str(key)]):
                self._origins[".".join(filter(None, (*path, leaf)))] = origin

    def _drop_origins(self, path: tuple[str, ...]) -> None:
        prefix = ".".join(path)
        for leaf in [leaf for leaf in self._origins if leaf == prefix or leaf.startswith(prefix + ".")]:
            del self._origins[leaf]

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


def is_entry(path: tuple[str, ...]) -> bool:
    """Whether the path is that of a named entry, which `null` removes."""
    by_name = (*MAPS, "policies", "scales")
    return (len(path) == 2 and path[0] in by_name) or (len(path) == 3 and path[:2] == ("team", "roles"))


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
