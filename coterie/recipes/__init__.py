"""Recipes: YAML files, one a game and form; overlays over them; how both become one configuration."""

from __future__ import annotations

from coterie.recipes.layers import (
    TableFrom as TableFrom,
    file_of as file_of,
    gather as gather,
    load as load,
    locate as locate,
    parse_override as parse_override,
    read_overlay as read_overlay,
    read_yaml as read_yaml,
    resolve as resolve,
    resource_path as resource_path,
)
from coterie.recipes.listing import (
    OverlayInfo as OverlayInfo,
    RecipeInfo as RecipeInfo,
    find_plugin as find_plugin,
    list_overlays as list_overlays,
    recipes as recipes,
    registered as registered,
)
from coterie.recipes.merging import flatten as flatten
from coterie.recipes.overlays import names as names
