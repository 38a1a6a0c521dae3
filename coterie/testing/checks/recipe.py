"""The recipes and overlays of a plugin: they resolve, and every key in them is known."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, ValidationError

from coterie.compose.curriculum import taken
from coterie.compose.rules.table import check
from coterie.compose.settings import REFERRED
from coterie.compose.tables import TEAM_KEYS, RewardConfig
from coterie.core.config import MAPS, TABLES, RunConfig
from coterie.core.config.validation import explain
from coterie.core.errors import ConfigError, MissingExtra, UserError, did_you_mean
from coterie.core.plugins import Table, as_table, composed_fields
from coterie.discovery import Entry, plugins
from coterie.recipes.layers import gather, read_overlay, resolve, resource_path
from coterie.recipes.merging import EVERY_SCALE, Layers
from coterie.testing.support.failure import ConformanceError, guarded, require

_FIX = "a path, or `package:file.yaml`"


@contextmanager
def registered(entries: Iterable[Entry]) -> Iterator[None]:
    """A context in which the process knows these entries too, so that recipes may name them."""
    registry = plugins().registry
    lent = [entry for entry in entries if entry.name not in registry.names(entry.kind)]
    for entry in lent:
        registry.add(entry.kind, entry.name, entry.target, entry.distribution, entry.config, entry.policy)
    try:
        yield
    finally:
        for entry in lent:
            registry.discard(entry)


def check_layer(entry: Entry, where: str) -> None:
    """Check a registered recipe or overlay, inside `registered`.

    A recipe resolves, alone and at each scale, and each component's table has keys of its plugin's Config and
    values that it accepts. Keys that are missing are left to the user. An overlay has a configuration's keys.

    Raises:
        ConformanceError: everything that is wrong, each with the path of its key.
    """
    with guarded(where, _FIX):
        path = resource_path(entry.target)
    require(path.is_file(), f"there is no file {path}", where, fix=_FIX)
    errors: dict[str, UserError] = {}
    with _gathered(errors):
        if entry.kind == "overlay":
            _check_overlay(read_overlay(path)[0], errors)
        else:
            _check_recipe(gather(path), errors)
    if errors:
        fix = "`coterie config` shows the keys and where they are set"
        raise ConformanceError("\n".join(errors), where=where, fix=fix) from next(iter(errors.values()))


@contextmanager
def _gathered(errors: dict[str, UserError]) -> Iterator[None]:
    """A context whose error is added to the others, each once; what an optional package lacks is none."""
    try:
        yield
    except MissingExtra:
        return
    except UserError as error:
        errors.setdefault(str(error), error)


def _check_recipe(merged: Layers, errors: dict[str, UserError]) -> None:
    for scale in (None, *(merged.table.get("scales") or {})):
        with _gathered(errors):
            config = resolve(copy.deepcopy(merged), scale=scale).config
            for kind, table, path, name, also in _components(config):
                with _gathered(errors):
                    _check_component(kind, table, path, name, also)
            if not errors:
                check(config, policies=False)


def _check_overlay(overlay: Table, errors: dict[str, UserError]) -> None:
    for error in _unknown(overlay, RunConfig, (), ["summary", "scales", EVERY_SCALE]):
        errors.setdefault(str(error), error)
    for block in (overlay, *(overlay.get("scales") or {}).values(), overlay.get(EVERY_SCALE)):
        with _gathered(errors):
            _check_typed(block or {})


def _unknown(
    table: Mapping[str, Any], model: type[BaseModel], path: tuple[str, ...], also: Sequence[str]
) -> Iterator[ConfigError]:
    """The unknown keys of an overlay's table, and of the tables inside that a schema describes."""
    for key, value in table.items():
        if key in ("scales", EVERY_SCALE):
            blocks = (value or {}).items() if key == "scales" else [("", value)]
            for name, block in blocks:
                yield from _unknown(block or {}, RunConfig, tuple(filter(None, (key, name))), ())
        elif key not in model.model_fields and key not in also:
            fix = did_you_mean(str(key), [*model.model_fields, *also])
            yield ConfigError(f"unknown key '{key}'", path=".".join((*path, str(key))), fix=fix)
        elif isinstance(value, Mapping) and key in model.model_fields:
            inner = model.model_fields[key].annotation
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from _unknown(value, inner, (*path, str(key)), ())


def _check_typed(table: Mapping[str, Any]) -> None:
    """Check the components of an overlay that say their type; the types of others are the recipes' to say."""
    for name, kind in TABLES.items():
        value = table.get(name)
        if isinstance(value, Mapping) and "type" in value:
            _check_component(kind, taken(dict(value))[1] if name == "env" else dict(value), name)
    for name, kind in MAPS.items():
        entries = table.get(name)
        for key, value in entries.items() if isinstance(entries, Mapping) else ():
            if isinstance(value, Mapping) and "type" in value:
                also = list(RewardConfig.model_fields) if name == "rewards" else ()
                _check_component(kind, dict(value), f"{name}.{key}", key, also)


def _components(config: RunConfig) -> Iterator[tuple[str, Table, str, str, Sequence[str]]]:
    """The arguments of `_check_component` for each component of a configuration."""
    for name, kind in TABLES.items():
        table = getattr(config, name)
        if table is not None:
            yield kind, taken(table)[1] if name == "env" else table, name, "", ()
    rewards = list(RewardConfig.model_fields)
    for name, kind in MAPS.items():
        for key, table in getattr(config, name).items():
            yield kind, table, f"{name}.{key}", key, rewards if name == "rewards" else ()
    for role, table in config.team.roles.items():
        yield "role", table, f"team.roles.{role}", role, TEAM_KEYS


def _check_component(kind: str, table: Table, path: str, name: str = "", also: Sequence[str] = ()) -> None:
    """Check the settings of a component, and of those inside it, without making any."""
    settings = {key: value for key, value in as_table(table).items() if key not in also}
    registry = plugins().registry
    plugin = settings.pop("type", name if name in registry.names(kind) else None)
    if plugin is None:
        return  # the user's to choose
    try:
        model = registry.config_of(kind, str(plugin), path=f"{path}.type")
    except MissingExtra:
        return
    if model is None:
        for key in settings:
            raise ConfigError(f"unknown key '{key}'", path=f"{path}.{key}", why=f"'{plugin}' has no settings")
        return
    try:
        model.model_validate(settings)
    except ValidationError as error:
        if any(problem["type"] != "missing" for problem in error.errors()):
            raise explain(error, model, settings, path, also) from None
    for field, inner in composed_fields(model).items():
        value = settings.get(field)
        if isinstance(value, str) and inner in REFERRED:
            continue  # an entry of the run's table, perhaps of another layer: whoever composes it knows
        if isinstance(value, (str, Mapping)):
            _check_component(inner, as_table(value), f"{path}.{field}")
