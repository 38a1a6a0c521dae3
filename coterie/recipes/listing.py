"""The registered recipes and overlays, and which of these fit which."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coterie.compose.curriculum import taken
from coterie.compose.rules.table import check
from coterie.core.config import Resolved, table_digest
from coterie.core.errors import ConfigError, PluginError, UserError, did_you_mean
from coterie.core.plugins import FILES, KINDS, Table
from coterie.discovery import plugins
from coterie.recipes.layers import file_of, gather, locate, read_overlay, read_yaml, resolve
from coterie.recipes.merging import Layers, copied
from coterie.recipes.overlays import policy_of

log = logging.getLogger("coterie")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeInfo:
    """A registered recipe."""

    name: str
    summary: str
    path: str
    distribution: str
    environment: str = ""
    """The environment's plugin; empty where the recipe doesn't resolve."""
    order: str = ""
    """The roles as they act: `planner > executor`; roles that act at once are joined with `+`."""
    scales: list[str] = field(default_factory=list)
    overlays: list[str] = field(default_factory=list)
    """Registered overlays that fit: they resolve with the recipe, set only what its environment has, and
    change something."""
    error: str = ""
    """Why the recipe doesn't resolve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayInfo:
    """A registered overlay."""

    name: str
    summary: str
    path: str
    distribution: str


def registered(kind: str) -> list[str]:
    """The names that plugins registered of a kind, as `study` or `column`, in alphabetical order.

    Raises:
        ConfigError: there is no such kind.
    """
    check_kind(kind)
    return plugins().registry.names(kind)


def check_kind(kind: str) -> None:
    """Raise ConfigError for a word that is no kind of plugin."""
    if kind not in KINDS:
        raise ConfigError(f"there is no kind of plugins '{kind}'", fix=did_you_mean(kind, KINDS))


def find_plugin(kind: str, name: str | Path) -> Any:
    """What plugins registered of a kind under a name, for programs around runs.

    Of recipes, overlays and columns this is their YAML file, which may be named by its path too; of any other
    kind it is the object, and `name` may also be `package.module:Object`.

    Raises:
        ConfigError: there is no such kind, or no such recipe, overlay or column.
        PluginError: nothing has that name, and the message has the nearest, or it can't be imported.
    """
    check_kind(kind)
    return locate(name, kind)[0] if kind in FILES else plugins().registry.load(kind, str(name))


def recipes(*, details: bool = False) -> list[RecipeInfo]:
    """Every registered recipe.

    Args:
        details: also resolve each recipe, alone and with each overlay.
    """
    overlays = _readable_overlays() if details else {}
    return [
        _recipe(entry.name, entry.distribution, details, overlays)
        for entry in plugins().registry.entries("recipe")
    ]


def list_overlays() -> list[OverlayInfo]:
    """Every registered overlay."""
    infos = []
    for entry in plugins().registry.entries("overlay"):
        try:
            path = file_of(entry)
            summary = str(read_yaml(path).get("summary", ""))
        except UserError as error:
            log.warning("overlay '%s' of %s is left out: %s", entry.name, entry.distribution, error)
            continue
        infos.append(
            OverlayInfo(name=entry.name, summary=summary, path=str(path), distribution=entry.distribution)
        )
    return infos


def broken_files(provides: Mapping[str, Sequence[str]], distribution: str) -> list[str]:
    """What is wrong with the files that a plugin registered, by kind and name: those that aren't there."""
    errors = []
    for kind in FILES:
        for entry in plugins().registry.qualified(kind):
            registered = entry.distribution == distribution and entry.name in provides.get(kind, ())
            if registered:
                try:
                    file_of(entry)
                except PluginError as error:
                    errors.append(str(error))
    return errors


def _readable_overlays() -> dict[str, tuple[Table, str]]:
    """(table, origin) of each registered overlay, by name; one whose file is wrong fits no recipe."""
    tables: dict[str, tuple[Table, str]] = {}
    for name in plugins().registry.names("overlay"):
        with contextlib.suppress(UserError):
            tables[name] = read_overlay(name)
    return tables


def _recipe(
    name: str, distribution: str, details: bool, overlays: Mapping[str, tuple[Table, str]]
) -> RecipeInfo:
    info = RecipeInfo(name=name, summary="", path="", distribution=distribution)
    try:
        info = replace(info, path=str(locate(name)[0]))
        if not details:
            return replace(info, summary=str(read_yaml(Path(info.path)).get("summary", "")))
        merged = gather(name)
        resolved = resolve(merged.copy())
    except UserError as error:
        return replace(info, error=str(error))
    config, scales = resolved.config, list(merged.table.get("scales", {}))
    alone: dict[str | None, str] = {None: _settings(resolved)}
    alone |= {scale: _settings(resolve(merged.copy(), scale=scale)) for scale in scales}
    stages = [[stage] if isinstance(stage, str) else stage for stage in config.team.order]
    return replace(
        info,
        summary=config.summary,
        environment=str(config.env.get("type", "")),
        order=" > ".join(" + ".join(stage) for stage in stages),
        scales=scales,
        overlays=[overlay for overlay, layer in overlays.items() if _fits(merged, layer, alone)],
    )


def _fits(merged: Layers, overlay: tuple[Table, str], alone: Mapping[str | None, str]) -> bool:
    """Whether the recipe resolves with the overlay, and differs then at one scale or without any.

    Args:
        alone: by scale, the digest of the recipe's settings without the overlay.
    """
    layers = merged.copy()
    try:
        table, origin = overlay
        layers.overlay([(copied(table), origin)])
        resolved = resolve(layers.copy())
        check(resolved.config)
        if not _has_settings(resolved.config.env):
            return False
        scales = list(layers.table.get("scales", {}))
        return (
            [None, *scales] != [*alone]
            or _settings(resolved) != alone[None]
            or any(_settings(resolve(layers.copy(), scale=name)) != alone[name] for name in scales)
        )
    except UserError:
        return False


def _has_settings(env: Table) -> bool:
    """Whether the environment has the settings of its table; True where its plugin is broken."""
    try:
        model = plugins().registry.config_of("environment", str(env.get("type")))
    except UserError:
        return True  # the recipe's own fault, whatever the overlay
    return model is None or {*taken(env)[1]} - {"type"} <= {*model.model_fields}


def _settings(resolved: Resolved) -> str:
    """A digest of a configuration, which is used up; policies are named after the roles that play them."""
    table = resolved.table
    roles: dict[str, list[str]] = {}
    for role, policy in policy_of(table).items():
        roles.setdefault(policy, []).append(role)
        table["team"]["roles"][role]["policy"] = ""
    table["policies"] = {"+".join(roles.get(name, [])): table["policies"][name] for name in table["policies"]}
    return table_digest(table)
