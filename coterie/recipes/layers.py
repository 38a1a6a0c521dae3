"""The layers of a configuration: recipes, overlays, scales and overrides.

From lowest to highest:

1. the default types,
2. the recipes that a recipe `extends`, and the overlays that it names beside them in `with`,
3. the recipe,
4. the overlays of `--with`, from left to right (see `overlays.py`),
5. the block `scales.<scale>`,
6. the `every_scale` blocks of recipes and overlays, which hold with and without a scale,
7. the overrides.

`merging.py` says how two layers become one.
"""

from __future__ import annotations

import copy
import functools
import json
import logging
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from coterie.compose.layer_errors import layer_named
from coterie.compose.policies import run_config
from coterie.compose.rules.names import check_ends
from coterie.compose.tables import DEFAULT_TYPES
from coterie.core.config import Resolved, RunConfig, json_like
from coterie.core.errors import ConfigError, CoterieError, PluginError, did_you_mean, type_text
from coterie.core.plugins import Table
from coterie.core.storage.run_folder import RunFolder
from coterie.discovery import Entry, plugins
from coterie.recipes.exclusive import Replaced, replace
from coterie.recipes.located import located, plain, written
from coterie.recipes.merging import EVERY_SCALE, Layers, flatten
from coterie.recipes.overlays import names
from coterie.recipes.yaml_errors import file_error, is_misread, override_error

log = logging.getLogger("coterie")


class TableFrom(dict[str, Any]):
    """A configuration's table with its origin, which stands beside its values in place of `python`."""

    def __init__(self, table: Mapping[str, Any], origin: str) -> None:
        super().__init__(table)
        self.origin = origin


def load(
    source: str | Path | Mapping[str, Any] | RunConfig | Resolved,
    *,
    overrides: Sequence[str] = (),
    scale: str | None = None,
    overlays: Sequence[str] = (),
) -> Resolved:
    """Resolve a recipe's name, a YAML file, a run folder, a table, or what was resolved before.

    Args:
        overlays: names of overlays or their YAML files; they are applied from left to right.

    Raises:
        ConfigError: an unknown recipe, overlay or scale, two overlays that contradict each other, bad YAML, a
            wrong key or value; its path names the key.
    """
    return resolve(gather(source, overlays), overrides=overrides, scale=scale)


def gather(
    source: str | Path | Mapping[str, Any] | RunConfig | Resolved, overlays: Sequence[str] = ()
) -> Layers:
    """The layers up to the overlays, for `resolve`; see `load`."""
    if isinstance(source, RunConfig):
        source = source.model_dump(mode="json")
    if isinstance(source, Resolved):
        source = {"name": source.name, **source.table}
    merged = Layers()
    merged.add(DEFAULT_TYPES, "default")
    if isinstance(source, Mapping):
        name = str(source.get("name", "run"))
        origin = source.origin if isinstance(source, TableFrom) else "python"
        _extend(merged, copy.deepcopy(dict(source)), origin, None, ())
    else:
        path, origin, name = locate(source)
        _extend(merged, read_yaml(path), origin, path, ())
    chosen = names(overlays)
    stems = [locate(overlay, "overlay")[2] for overlay in chosen]
    merged.name = "_".join((str(merged.table.pop("name", name)), *stems))
    merged.overlay([read_overlay(overlay) for overlay in chosen])
    return merged


def resolve(merged: Layers, *, overrides: Sequence[str] = (), scale: str | None = None) -> Resolved:
    """The configuration of gathered layers, which are used up, with a scale and overrides."""
    if isinstance(overrides, str):
        fix = f"overrides=[{overrides!r}]"
        raise ConfigError("overrides are a list of texts, and this is one text", path="overrides", fix=fix)
    name, scales = merged.name, merged.table.pop("scales", {})
    if scale is not None:
        if scale not in scales:
            fix = did_you_mean(scale, scales)
            raise ConfigError(f"{name} has no scale '{scale}'", path="--scale", fix=fix)
        merged.add(scales[scale] or {}, f"scale {scale}")
    for block, origin in merged.every_scale:
        merged.add(block, origin)
    # A change of type replaces its table, so it precedes the overrides of the new table's keys.
    ordered = sorted(overrides, key=lambda text: not text.partition("=")[0].endswith(".type"))
    for number, override in enumerate(ordered):
        key = override.partition("=")[0]
        origin = f"override {key}" if "*" in key else "override"
        merged.add(parse_override(override), origin, report=True, same=number > 0)
    _warn_of_dropped(merged)
    with layer_named(merged.origins):
        replaced, config = _without_replaced(merged)
    table = config.model_dump(mode="json")
    origins = {path: merged.origin(path) for path, _ in flatten(table)}
    check_ends(config.schedule, origins)
    for each in replaced:
        if each.path in origins:  # its default stands there now
            origins[each.path] = f"{each.by_origin}, replaced by {each.by}"
        for path in [path for path in origins if path == each.by or path.startswith(f"{each.by}.")]:
            origins[path] += f", in place of {each.path}"
    return located(Resolved(name, config, table, origins), merged.table)


def _without_replaced(merged: Layers) -> tuple[list[Replaced], RunConfig]:
    """The settings that those of a later layer replaced, each with a warning, and the configuration."""
    config = run_config(plain(merged.table))
    decaying = any(policy.follows_budget for policy in config.policies.values())
    replaced = replace(merged, keep=("schedule.tokens",) if decaying else ())
    for each in replaced:
        log.warning("%s", each)
    return replaced, run_config(plain(merged.table)) if replaced else config


def _warn_of_dropped(merged: Layers) -> None:
    """Warn of settings that an override's change of type dropped, where the new type has them too.

    Settings that an override set again are not told. Only trainers and engines: their types stand in for one
    another, and share settings of batches and memory.
    """
    registry, kept = plugins().registry, []
    for key, value in merged.dropped.items():
        kind, _, setting = key.partition(".")
        if kind not in ("trainer", "engine") or key in merged.origins:
            continue
        try:
            fields = registry.config_of(kind, merged.table[kind]["type"]).model_fields
        except (CoterieError, AttributeError):  # told when the component is made
            continue
        if setting.partition(".")[0] in fields:
            kept.append(f"{key}={json.dumps(value)}")
    if kept:
        log.warning(
            "a changed type drops the settings of the old one, and the new one has some of them: %s  "
            "(fix: repeat those that the run should keep)",
            " ".join(kept),
        )


def read_overlay(source: str | Path) -> tuple[Table, str]:
    """(table, origin) of an overlay, given its name or its YAML file.

    Raises:
        ConfigError: there is no such overlay or file, or it has a key of recipes only.
    """
    path, origin, _ = locate(source, "overlay")
    table = read_yaml(path)
    for key in [key for key in ("extends", "with", "name") if key in table]:
        raise ConfigError(f"an overlay has no '{key}'", path=f"{origin}: {key}")
    return written(table, path.parent), origin


def locate(source: str | Path, kind: str = "recipe") -> tuple[Path, str, str]:
    """(file, origin, name) of a recipe or an overlay, given its name, its YAML file or a run folder.

    Raises:
        ConfigError: there is no such recipe, overlay or file.
        RunFolderError: the folder is no run's.
        PluginError: the file of a registered one is missing.
    """
    text = str(source)
    is_run = kind == "recipe" and (Path(text) / "config.yaml").is_file()
    registered = is_run and text in plugins().registry.names(kind)
    if text.endswith((".yaml", ".yml")) or isinstance(source, Path) or "/" in text or is_run > registered:
        path = Path(source)
        if path.is_dir() and kind == "recipe":  # a folder that is no run's names the runs near it
            path = RunFolder.open(path).config
        if not path.is_file():
            raise ConfigError(f"no such {kind} file: {path}")
        return path, f"file {path}", path.parent.name if path.name == "config.yaml" else path.stem
    registry = plugins().registry
    # A qualified name that isn't registered is taken for an object's, which no recipe is.
    if text not in registry.names(kind) and (":" not in text or registry.find(kind, text).target == text):
        more = "  (a file's name ends in .yaml)"
        if kind == "overlay":
            more += "; `coterie recipes` lists the overlays that fit a recipe"
        hints = registry.hints(text, registry.names(kind), more)
        raise ConfigError(f"unknown {kind} '{text}'", **hints)
    return file_of(registry.find(kind, text)), f"{kind} {text}", text.rpartition(":")[2]


def file_of(entry: Entry) -> Path:
    """The file of a registered recipe, overlay or column.

    Raises:
        PluginError: there is no such file; it names the plugin.
    """
    try:
        path = resource_path(entry.target)
        why = "" if path.is_file() else f"there is no file {path}"
    except PluginError as error:
        why = error.why
    if why:
        raise PluginError(f"{entry.label} has no file '{entry.target}'", why=why, fix=_TARGET)
    return path


_TARGET = "register a path, or `package:file.yaml` of an installed package: a folder with an `__init__.py`"


def resource_path(target: Any) -> Path:
    """The file that a registered target names: a path, or `package:file.yaml`.

    Raises:
        PluginError: the package can't be imported, or is a module of one file.
    """
    package, colon, file = str(target).partition(":")
    if not colon or Path(str(target)).exists():
        return Path(str(target))
    try:
        return Path(str(files(package).joinpath(file)))
    except Exception as error:  # its modules may raise anything when they are imported
        why = f"{type(error).__name__}: {error}"
        raise PluginError(f"no file '{target}' can be found", why=why, fix=_TARGET) from error


def _extend(merged: Layers, table: Table, origin: str, path: Path | None, seen: tuple[str, ...]) -> None:
    base, overlays = table.pop("extends", None), names(table.pop("with", None) or ())
    if base is not None:
        base = _beside(path, str(base))
        file, base_origin, _ = locate(base)
        if str(file) in seen:
            raise ConfigError(f"{origin} extends itself through {base}", path="extends")
        _extend(merged, read_yaml(file), base_origin, file, (*seen, str(file)))
        merged.overlay([read_overlay(_beside(path, name)) for name in overlays])
        merged.table.pop("summary", None)
    elif overlays:
        raise ConfigError("`with` needs `extends`", path="with", fix="extends: the recipe under the overlays")
    merged.add_file(table if path is None else written(table, path.parent), origin, EVERY_SCALE)


def _beside(path: Path | None, name: str) -> str:
    """A file that another file names, from that file's folder; a registered name as it is."""
    return str(path.parent / name) if path is not None and name.endswith((".yaml", ".yml")) else name


def parse_override(text: str) -> Table:
    """`a.b=1e-5` -> {"a": {"b": 1e-05}}. The value is YAML 1.2.

    Raises:
        ConfigError: no `=`, an empty key, or a value that is not YAML, or not in one piece.
    """
    key, equals, value = text.partition("=")
    if not equals or not key or any(not part for part in key.split(".")):
        raise ConfigError(f"'{text}' is not of the form key=value", fix="e.g. schedule.steps=20")
    try:
        parsed = YAML(typ="safe", pure=True).load(value)
    except YAMLError:
        raise override_error(key, value) from None
    if is_misread(value, parsed):
        raise override_error(key, value)
    table: Any = parsed
    for part in reversed(key.split(".")):
        table = {part: table}
    return dict(table)


def read_yaml(path: str | Path) -> Table:
    """A YAML file's table.

    Raises:
        ConfigError: the file is unreadable, is not YAML, repeats a key, or is not a table.
    """
    text, path = "", Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        value = _parsed(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read", why=str(error)) from None
    except YAMLError as error:
        raise file_error(path, text, error) from None
    if not isinstance(value, Mapping):
        why = "it is empty" if value is None else f"it is {type_text(value)}"
        raise ConfigError(f"{path} is not a table", why=why)
    table: Table = json_like(value)
    return table


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    """The value of a YAML text, which its callers copy: recipes have their bases and overlays in common."""
    return YAML(typ="safe", pure=True).load(text)
