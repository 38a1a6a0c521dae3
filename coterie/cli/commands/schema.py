"""`coterie schema`: the JSON Schema of configurations, for editors and for checks without Python."""

from __future__ import annotations

import inspect
from typing import Any

import click

from coterie.cli.options import plugin_option
from coterie.cli.output import print_json
from coterie.core.errors import MissingExtra, PluginError
from coterie.core.plugins import Entry

UNCONFIGURED = ("recipe", "overlay", "column", "study", "command")
"""Kinds without a table in a configuration."""


@click.command(short_help="Print the JSON Schema of configurations.")
@plugin_option
def command() -> None:
    """Print the JSON Schema of configurations.

    Under `components` stands, by kind and name, the schema of each plugin's settings; of a plugin that can't
    be imported, what is missing.
    """
    from coterie.core.config import RunConfig
    from coterie.core.plugins import KINDS, plugins

    registry = plugins().registry
    components = {
        kind: {entry.name: plugin_schema(entry) for entry in registry.entries(kind)}
        for kind in KINDS
        if kind not in UNCONFIGURED
    }
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    print_json({**head, **RunConfig.model_json_schema(), "components": components})


def plugin_schema(entry: Entry) -> dict[str, Any]:
    """The schema of a plugin's Config, or what keeps the plugin from being imported."""
    try:
        target = entry.load()
    except MissingExtra as error:
        return {"unavailable": error.what, "fix": error.fix}
    except PluginError as error:
        return {"unavailable": str(error)}
    model = getattr(target, "Config", None)
    schema: dict[str, Any] = (
        model.model_json_schema()
        if model is not None
        else {"type": "object", "properties": {}, "additionalProperties": False}
    )
    description = inspect.getdoc(target)
    return {**schema, "description": description.partition("\n\n")[0]} if description else schema
