"""`coterie config`: a configuration, each value with its origin."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.comlrl import FromCommand, configured, from_option
from coterie.cli.options import json_option, layer_options, overrides, plugin_option
from coterie.cli.output import print_json
from coterie.core.errors import MissingExtra

if TYPE_CHECKING:
    from coterie.comlrl import Flags

log = logging.getLogger("coterie")
PLAIN = re.compile(r"[A-Za-z_][\w./+-]*")
RESERVED = frozenset({"true", "false", "null", "yes", "no", "on", "off"})


@click.command(cls=FromCommand, short_help="Show a configuration and where each value came from.")
@click.argument("source", metavar="RECIPE|FILE|RUN_DIR")
@click.argument("settings", metavar="[KEY=VALUE]...", nargs=-1)
@layer_options
@from_option
@json_option
@plugin_option
def command(
    source: str, settings: tuple[str, ...], as_json: bool, flags: Flags | None, **layers: Any
) -> None:
    """Show a recipe with its overlays, scale and overrides applied, each value with where it came from.

    The configuration is checked as by `coterie run`. Settings of plugins that the recipe does not set are
    shown with their defaults. The output is YAML that `coterie run` takes.
    """
    from coterie.compose import prepare
    from coterie.estimate.cost import read_splits
    from coterie.recipes import flatten, load

    resolved = load(configured(source, settings, flags), overrides=overrides(settings), **layers)
    try:  # the engine and the trainer are not made: they may import large libraries
        prepare(resolved, read_splits(resolved.config))
    except MissingExtra as error:  # the configuration can still be shown
        log.warning("not checked in full: %s; %s", error.what, error.fix)
    table = with_defaults(resolved.table)
    origins = {path: resolved.origins.get(path, "default") for path, _ in flatten(table)}
    if as_json:
        print_json({"name": resolved.name, "config": table, "origins": origins})
        return
    lines = list(_lines(table, origins))
    width = min(64, max(len(text) for text, _ in lines))  # one long value must not push all comments out
    for text, origin in lines:
        click.echo(f"{text:<{width}}  {click.style('# ' + origin, dim=True)}" if origin else text)


def with_defaults(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with the defaults of the chosen plugins filled in, where these can be imported."""
    from coterie.compose.tables import component_tables

    filled: dict[str, Any] = json.loads(json.dumps(table))
    for _, kind, _, settings, _ in component_tables(filled):
        if isinstance(settings, dict):
            for name, value in _defaults(kind, settings.get("type")).items():
                settings.setdefault(name, value)
    return filled


def _defaults(kind: str, plugin: Any) -> dict[str, Any]:
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    from coterie.compose.described import default_of
    from coterie.discovery import plugins

    try:
        model = plugins().registry.config_of(kind, str(plugin))
    except MissingExtra:
        return {}
    defaults = {}
    for name, field in model.model_fields.items() if model is not None else ():
        if field.is_required():
            continue
        try:
            defaults[name] = to_jsonable_python(default_of(field))
        except (PydanticSerializationError, TypeError, ValueError):
            continue  # no plain value
    return defaults


def _lines(value: Mapping[str, Any], origins: Mapping[str, str], at: str = "") -> Iterator[tuple[str, str]]:
    """Lines of YAML, each with its origin; a mapping's own line has none."""
    indent = "  " * (at.count(".") + 1 if at else 0)
    for key, inner in value.items():
        path = f"{at}.{key}" if at else str(key)
        if isinstance(inner, Mapping) and inner:
            yield f"{indent}{flow(key)}:", ""
            yield from _lines(inner, origins, path)
        else:
            yield f"{indent}{flow(key)}: {flow(inner)}", origins.get(path, "default")


def flow(value: Any) -> str:
    """A value as one line of YAML 1.2: JSON, with quotes only where they are needed."""
    if isinstance(value, str):
        return value if PLAIN.fullmatch(value) and value.lower() not in RESERVED else json.dumps(value)
    if isinstance(value, list):
        return f"[{', '.join(map(flow, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{flow(key)}: {flow(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value)
