"""Where the recipes of a component's own distribution use it: with which settings, environment and team."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.compose.tables import component_tables
from coterie.core.config import Resolved
from coterie.core.errors import UserError
from coterie.discovery import Entry, plugins
from coterie.recipes.layers import gather, resolve, resource_path

_SHARED = ("sandbox", "data", "tools", "chat_models")
"""Top-level tables that components of others refer to."""
_SCALES = ("smoke", "cpu")


@dataclass(frozen=True, slots=True)
class RecipeUse:
    """A component in a recipe; by default, in none."""

    recipe: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Its table without `type` and without what others read of it."""
    name: str = ""
    """Its key, where its table has several: the role of a team."""
    env: Mapping[str, Any] | None = None
    order: Sequence[Any] | None = None
    roles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The tables of the team's roles."""
    turns: int = 3
    tables: Mapping[str, Any] = field(default_factory=dict)
    """Top-level tables that components may share, such as `sandbox`."""
    policies: Mapping[str, Any] = field(default_factory=dict)


def reference(entry: Entry) -> str:
    """The type by which a table names a component, in any process that can import it."""
    target = entry.target
    if entry.distribution.endswith(".py"):
        if isinstance(target, str):
            return target
        module, name = getattr(target, "__module__", ""), getattr(target, "__qualname__", "")  # or no class
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
            resolved = resolve(merged, scale=scale)
        except (UserError, OSError):
            continue  # told by the recipe's own check
        yield from _in(recipe.name, resolved, entry.kind, names)


def _in(recipe: str, resolved: Resolved, kind: str, names: set[str]) -> Iterator[RecipeUse]:
    config, parts = resolved.config, list(component_tables(resolved.table))
    for part in parts:
        settings = part.settings
        if part.kind == kind and settings.pop("type", part.name) in names:
            yield RecipeUse(
                recipe=recipe,
                settings=settings,
                name=part.name,
                env=next(each.settings for each in parts if each.kind == "environment"),
                order=config.team.order,
                roles={each.name: each.settings for each in parts if each.kind == "role"},
                turns=config.team.max_turns,
                tables={name: value for name in _SHARED if (value := getattr(config, name, None))},
                policies=config.policies,
            )
