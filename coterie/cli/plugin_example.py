"""A component's table as an example: its defaults, at the place in a recipe where it goes."""

from __future__ import annotations

import re
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from coterie.compose.described import default_of
from coterie.core.config import MAPS, TABLES, to_yaml, validate
from coterie.core.errors import UserError
from coterie.core.plugins import Table, composed_fields
from coterie.discovery import Entry, plugins

COMMENT = "# Not valid yet: {}\n"


def example(entry: Entry, model: type[BaseModel]) -> str:
    """YAML of a component's table with the defaults of its Config; what is required is taken from a recipe.

    The table is one that the Config accepts, where the required settings can be found.
    """
    taken = _from_recipes(entry)
    required, optional = _tables(entry.kind, model, taken)
    wrong = ""
    examples = {
        info.alias or name: info.examples[0] for name, info in model.model_fields.items() if info.examples
    }
    required |= {key: examples[key] for key in required.keys() & examples.keys() - taken.keys()}
    for table in ({**required, **optional}, {**required, **optional, **examples}, required, taken):
        problem = _problem(model, table)
        if not problem:
            return _placed(entry, table)
        wrong = wrong or problem
    return COMMENT.format(wrong) + _placed(entry, {**required, **optional})


def _tables(kind: str, model: type[BaseModel], taken: Table) -> tuple[Table, Table]:
    """The required settings, and the others with defaults, null and deprecated ones left out."""
    required: Table = {}
    optional: Table = {}
    composed = composed_fields(model)
    for name, info in model.model_fields.items():
        key = info.alias or name
        if info.is_required():
            sample = _component(composed[name]) if name in composed else _sample(info.annotation)
            refers = name in composed and isinstance(taken.get(key), str)  # to another table of that recipe
            required[key] = sample if refers else taken.get(key, sample)
        elif not info.deprecated:
            default = default_of(info)
            plain = _without_null(to_jsonable_python(default, fallback=lambda thing: None))
            if plain is not None:
                optional[key] = plain
    return required, optional


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(inner) for key, inner in value.items() if inner is not None}
    return value


def _problem(model: type[BaseModel], table: Table) -> str:
    """Why the Config refuses a table; empty: it doesn't."""
    if open_settings := [key for key, value in table.items() if value == "..."]:
        return f"fill in {', '.join(open_settings)}"
    try:
        validate(model, table)
    except UserError as error:
        return " ".join(str(error).split())
    except Exception as error:  # a validator of the plugin's that expects components and gets their tables
        return f"{type(error).__name__}: {error}"
    return ""


def _sample(annotation: Any) -> Any:
    """A value of a type for a required setting; `...` where there is no obvious one."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _sample(arguments[0])
    if origin is Literal:
        return arguments[0]
    if origin in (Union, UnionType):
        return next(iter([_sample(kind) for kind in arguments if kind is not NoneType]))
    if isinstance(annotation, type) and issubclass(annotation, (int, float)):
        return annotation(1)
    return "..."


def _component(kind: str) -> Any:
    """A component of a kind that needs no settings."""
    registry = plugins().registry
    for name in sorted(registry.names(kind), key=lambda name: name != "heuristic"):
        entry = registry.find(kind, name)
        if entry.distribution == "coterie":
            try:
                model = entry.attribute("Config")
            except UserError:
                continue
            if model is None or not any(info.is_required() for info in model.model_fields.values()):
                return {"type": name}
    return "..."


def _from_recipes(entry: Entry) -> Table:
    """The settings that a registered recipe gives the component; those of its own distribution first."""
    from coterie.recipes import read_yaml
    from coterie.recipes.layers import file_of

    recipes = plugins().registry.entries("recipe")
    for recipe in sorted(recipes, key=lambda recipe: recipe.distribution != entry.distribution):
        try:
            path = file_of(recipe)
            if not re.search(rf"\b{re.escape(entry.name)}\b", Path(path).read_text(encoding="utf-8")):
                continue
            table = read_yaml(path)
        except (UserError, OSError):
            continue
        for name, component in _components(table, entry.kind):
            if component.get("type", name) == entry.name:
                rest = {"type", "policy", "weights", "tools", "concurrency", "max_missing", "show_thoughts"}
                return {key: value for key, value in component.items() if key not in rest}
    return {}


def _components(table: Table, kind: str) -> list[tuple[str, Table]]:
    """(name, table) of the components of a kind in a recipe's own file."""
    listed = [("", table.get(name)) for name, of in TABLES.items() if of == kind]
    for name, of in MAPS.items():
        listed += list((table.get(name) or {}).items()) if of == kind else []
    if kind == "role":
        listed += list(((table.get("team") or {}).get("roles") or {}).items())
    return [(name, given) for name, given in listed if isinstance(given, dict)]


def _placed(entry: Entry, settings: Table) -> str:
    """The table under the keys of a recipe under which it stands."""
    table: Any = {"type": entry.name, **settings}
    if entry.kind == "role":
        return to_yaml(
            {"team": {"roles": {entry.name: {"type": entry.name, "policy": "learner", **settings}}}}
        )
    for place, kind in MAPS.items():
        if kind == entry.kind:
            return to_yaml({place: {entry.name: table}})
    return to_yaml({next(place for place, kind in TABLES.items() if kind == entry.kind): table})
