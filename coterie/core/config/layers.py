"""How recipes, scales and overrides become one configuration, each value with where it came from.

Layers, later over earlier: the recipes that a recipe `extends`, the recipe, its `scales.<scale>` block, its
`every_scale` block (what it says at whichever scale, and without one), the overrides. Tables are merged key
by key, except that a table whose `type` changes is replaced: the settings of one plugin mean nothing to
another. `null` removes an entry of a table by name (a role, a policy, a reward).
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from coterie.core.config.schema import DEFAULT_TYPES, MAPS, TABLES, RoleConfig, RunConfig
from coterie.core.config.validation import validate
from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins import as_table, plugins

Table = dict[str, Any]
COMPONENTS = frozenset(TABLES)
TEAM_KEYS = tuple(RoleConfig.model_fields)
"""Keys of a role's table that are the team's, not the plugin's."""
EVERY_SCALE = "every_scale"
"""Key of a recipe's block that stands above its scales."""


@dataclass(frozen=True, slots=True)
class RecipeInfo:
    """A recipe that is registered."""

    name: str
    summary: str
    path: str
    distribution: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """One configuration, and where each value came from."""

    name: str
    config: RunConfig
    table: Table
    """What the layers say, merged; defaults of the run's own tables filled in."""
    origins: dict[str, str]

    def text(self) -> str:
        """The configuration as YAML: what `config.yaml` of a run holds."""
        return to_yaml({"name": self.name, **self.table})

    def digest(self) -> str:
        """sha256 over everything that decides results."""
        return table_digest(self.table)


def table_digest(table: Mapping[str, Any]) -> str:
    """sha256 of a configuration table, its summary left out."""
    kept = {key: value for key, value in table.items() if key not in ("summary", "name")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()


def load(
    source: str | Path | Mapping[str, Any] | RunConfig,
    *,
    overrides: Sequence[str] = (),
    scale: str | None = None,
) -> Resolved:
    """Resolve a recipe's name, a YAML file, or a table.

    Raises:
        ConfigError: unknown recipe or scale, bad YAML, a wrong key or value; names the path.
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
    above = merged.table.pop(EVERY_SCALE, None) or {}
    if not isinstance(above, Mapping):
        raise ConfigError("every_scale holds no table", path=EVERY_SCALE, why=f"got {above!r}")
    name = str(merged.table.pop("name", name))
    if scale is not None:
        if scale not in scales:
            raise ConfigError(
                f"{name} has no scale '{scale}'", path="--scale", fix=did_you_mean(scale, scales)
            )
        merged.add(scales[scale] or {}, f"scale {scale}")
    merged.add(above, EVERY_SCALE)
    # A change of type replaces its table, so it goes before the keys that are meant for the new one.
    for override in sorted(overrides, key=lambda text: not text.partition("=")[0].endswith(".type")):
        merged.add(parse_override(override), "override")
    config: RunConfig = validate(RunConfig, merged.table)
    table = config.model_dump(mode="json")
    origins = {path: merged.origin(path) for path, _ in flatten(table)}
    return Resolved(name, config, table, origins)


def recipes() -> list[RecipeInfo]:
    """Every registered recipe."""
    found = []
    for entry in plugins().registry.entries("recipe"):
        path = resource_path(entry.target)
        found.append(
            RecipeInfo(entry.name, str(read_yaml(path).get("summary", "")), str(path), entry.distribution)
        )
    return found


def locate(source: str | Path) -> tuple[Path, str, str]:
    """(file, origin, name) of a recipe's name or a YAML file.

    Raises:
        ConfigError: neither a recipe nor a file; names the nearest recipe.
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
        raise ConfigError(
            f"unknown recipe '{text}'",
            fix=did_you_mean(text, registry.names("recipe")) + "  (a file's name ends in .yaml)",
        )
    return resource_path(registry.find("recipe", text).target), f"recipe {text}", text


def resource_path(target: Any) -> Path:
    """The file that a registered target names: a path, or `package:file.yaml`."""
    package, colon, file = str(target).partition(":")
    if not colon or Path(str(target)).exists():
        return Path(str(target))
    from importlib.resources import files

    return Path(str(files(package).joinpath(file)))


def _extend(merged: _Layers, table: Table, origin: str, path: Path | None, seen: tuple[str, ...]) -> None:
    base = table.pop("extends", None)
    if base is not None:
        beside = path.parent / str(base) if path is not None else Path(str(base))
        file, base_origin, _ = locate(beside if str(base).endswith((".yaml", ".yml")) else str(base))
        if str(file) in seen:
            raise ConfigError(f"{origin} extends itself by way of {base}", path="extends")
        _extend(merged, read_yaml(file), base_origin, file, (*seen, str(file)))
        merged.table.pop("summary", None)
    merged.add(table, origin)


class _Layers:
    """The merged table, and the origin of every leaf."""

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
            if value is None and is_entry(path):  # (inside `scales` the paths are longer: kept until applied)
                self._forget(path)
                into.pop(key, None)
                continue
            old = into.get(key)
            if isinstance(value, Mapping) and isinstance(old, dict) and not _changes_type(old, value):
                self._merge(old, value, origin, path)
                continue
            if path[:2] == ("team", "roles") and isinstance(value, Mapping) and isinstance(old, dict):
                # What is the team's (who plays it, with which tools) outlives a change of the role's type.
                value = {**{name: old[name] for name in TEAM_KEYS if name in old}, **value}
            self._forget(path)
            into[str(key)] = copy.deepcopy(dict(value) if isinstance(value, Mapping) else value)
            for leaf, _ in flatten(into[str(key)]):
                self._origins[".".join(filter(None, (*path, leaf)))] = origin

    def _forget(self, path: tuple[str, ...]) -> None:
        prefix = ".".join(path)
        for known in [p for p in self._origins if p == prefix or p.startswith(prefix + ".")]:
            del self._origins[known]

    def origin(self, path: str) -> str:
        while path:
            if path in self._origins:
                return self._origins[path]
            path = path.rpartition(".")[0]
        return "default"


def is_component(path: tuple[str, ...]) -> bool:
    """Whether a table at this path names a plugin by its `type`."""
    return (len(path) == 1 and path[0] in COMPONENTS) or (len(path) == 2 and path[0] in MAPS)


def is_entry(path: tuple[str, ...]) -> bool:
    """Whether a path is an entry of a table by name; `null` there removes what a lower layer put in."""
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
    """`a.b=1e-5` -> {"a": {"b": 1e-05}}; the value is YAML 1.2, so the field's own type can be written.

    Raises:
        ConfigError: no `=`, an empty key, or a value that is no YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not key or any(not part for part in key.split(".")):
        raise ConfigError(f"'{text}' is not of the form key=value", fix="e.g. schedule.steps=20")
    try:
        parsed = YAML(typ="safe", pure=True).load(value)
    except YAMLError as error:
        raise ConfigError(
            f"the value {value!r} is no YAML", path=key, why=str(error).split("\n")[0]
        ) from None
    table: Any = parsed
    for part in reversed(key.split(".")):
        table = {part: table}
    return dict(table)


def read_yaml(path: Path) -> Table:
    """A YAML file's table.

    Raises:
        ConfigError: unreadable, bad YAML, a key twice, or no table.
    """
    try:
        value = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read", why=str(error)) from None
    except YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML", why=" ".join(str(error).split())) from None
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path} holds no table", why=f"it is a {type(value).__name__}")
    table: Table = json_like(value)
    return table


def json_like(value: Any) -> Any:
    """Plain dicts, lists and scalars."""
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
