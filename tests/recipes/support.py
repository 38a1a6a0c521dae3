"""What several tests of recipes ask for."""

from __future__ import annotations

from functools import cache

from coterie.recipes import RecipeInfo, recipes


@cache
def listed() -> dict[str, RecipeInfo]:
    """The registered recipes with their details, by name; resolving them takes seconds."""
    return {info.name: info for info in recipes(details=True)}
