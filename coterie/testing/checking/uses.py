"""Where the recipes of a component's own distribution use it: with which settings, environment and team."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.compose.curriculum import taken
from coterie.compose.tables import TEAM_KEYS
from coterie.core.config import RunConfig
from coterie.core.errors import UserError
from coterie.core.plugins import as_table
from coterie.discovery import Entry, plugins
from coterie.recipes.layers import gather, resolve, resource_path
from coterie.testing.checks.plugin import components

_SHARED = ("sandbox", "data", "tools", "chat_models")
"""Top-level tables that components of others refer to."""
_SCALES = ("smoke", "cpu")


@dataclass(frozen=True, slots=True)
class RecipeUse:
    """A component in a recipe."""

    recipe: str
    settings: Mapping[str, Any]
    """Its table without `type` and without what others read of it."""
    name: str
    """Its key, where its table has several: the role of a team."""
    env: Mapping[str, Any]
    order: Sequence[Any]
    roles: Mapping[str, Mapping[str, Any]]
    """The tables of the team's roles."""
    turns: int
    tables: Mapping[str, Any] = field(default_factory=dict)
    """Top-level tables that components may share, such as `sandbox`."""
    policies: Mapping[str, Any] = field(default_factory=dict)


def reference(entry: Entry) -> str:
    """The type by which a table names a component, in any process that can import it."""
    target = entry.target
    if entry.distribution.endswith(".py"):
        if isinstance(target, str):
            return target
        module, name = target.__module__, target.__qualname__
        importable = getattr(sys.modules.get(module), name, None) is target
        return f"{module}:{name}" if importable else entry.name  # another module may have the file's name
    if entry.name in plugins().registry.names(entry.kind):
        same = plugins().registry.find(entry.kind, entry.name) is entry
        return entry.name if same else f"{entry.distribution}:{entry.name}"
    return entry.name  # `package.module:Object`


def uses(entry: Entry) -> Iterator[RecipeUse]:
    """The component's uses in recipes of its distribution, at their smallest scale; broken ones have none."""
    names = {entry.name, f"{entry.distribution}:{entry.name}", reference(entry)}
    if isinstance(entry.target, str):
        names.add(entry.target)
    for recipe in plugins().registry.qualified("recipe"):
        if recipe.distribution != entry.distribution:
            continue
        try:
            text = resource_path(recipe.target).read_text(encoding="utf-8")
            if "extends" not in text and not any(name in text for name in names):
                continue
            merged = gather(resource_path(recipe.target))
            known = merged.table.get("scales") or {}
            scale = next((scale for scale in _SCALES if scale in known), None)
            config = resolve(merged, scale=scale).config
        except (UserError, OSError):
            continue  # told by the recipe's own check
        yield from _in(recipe.name, config, entry.kind, names)


def _in(recipe: str, config: RunConfig, kind: str, names: set[str]) -> Iterator[RecipeUse]:
    for of_kind, table, _, key, also in components(config):
        settings = dict(as_table(table))
        if of_kind == kind and settings.pop("type", key) in names:
            yield RecipeUse(
                recipe=recipe,
                settings={name: value for name, value in settings.items() if name not in also},
                name=key,
                env=taken(dict(config.env))[1],
                order=[list(stage) if not isinstance(stage, str) else stage for stage in config.team.order],
                roles={role: _of_role(table) for role, table in config.team.roles.items()},
                turns=config.team.max_turns,
                tables={name: value for name in _SHARED if (value := getattr(config, name, None))},
                policies=config.policies,
            )


def _of_role(table: Any) -> dict[str, Any]:
    return {key: value for key, value in as_table(table).items() if key not in TEAM_KEYS}
