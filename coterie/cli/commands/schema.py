"""`coterie schema`: the JSON Schema of configurations, for editors and for checks without Python."""

from __future__ import annotations

import inspect
from typing import Any

import click
from pydantic_core import to_jsonable_python

from coterie.cli.options import overrides, plugin_option
from coterie.cli.output import print_json
from coterie.compose.described import NoDefault, default_of
from coterie.core.errors import MissingExtra, PluginError
from coterie.core.plugins import DECLARING
from coterie.discovery import Entry


@click.command(short_help="Print the JSON Schema of configurations.")
@click.argument("source", metavar="[RECIPE|FILE|RUN_DIR]", required=False)
@click.argument("settings", metavar="[KEY=VALUE]...", nargs=-1)
@plugin_option
def command(source: str | None, settings: tuple[str, ...]) -> None:
    """Print the JSON Schema of configurations.

    A policy's table has the fields that the trainer and the engine declare: those of the recipe, else the
    default ones. Under `components` stands, by kind and name, the schema of each plugin's settings, and under
    `policy` what a trainer or an engine declares; of a plugin that can't be imported, what is missing.
    """
    from coterie.compose.policies import policy_schema
    from coterie.compose.tables import DEFAULT_TYPES
    from coterie.core.config import RunConfig
    from coterie.core.plugins import KINDS, UNCONFIGURED
    from coterie.discovery import plugins
    from coterie.recipes import load

    registry = plugins().registry
    chosen = DEFAULT_TYPES if source is None else load(source, overrides=overrides(settings)).table
    policy = policy_schema(chosen["trainer"]["type"], chosen["engine"]["type"]).model_json_schema()
    schema = RunConfig.model_json_schema()
    schema["$defs"] |= {**policy.pop("$defs", {}), "PolicyConfig": {**policy, "title": "PolicyConfig"}}
    components = {
        kind: {entry.name: plugin_schema(entry) for entry in registry.entries(kind)}
        for kind in KINDS
        if kind not in UNCONFIGURED
    }
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    print_json({**head, **schema, "components": components})


def plugin_schema(entry: Entry) -> dict[str, Any]:
    """The schema of a plugin's Config and Policy, or what keeps the plugin from being imported."""
    try:
        model, policy = entry.attribute("Config"), entry.attribute("Policy")
        # A plugin with schemas beside it is not imported, since its module may import a large library.
        described = model if entry.config is not None else entry.load()
    except MissingExtra as error:
        return {"unavailable": error.what, "fix": error.fix}
    except PluginError as error:
        return {"unavailable": str(error)}
    schema: dict[str, Any] = (
        model.model_json_schema()
        if model is not None
        else {"type": "object", "properties": {}, "additionalProperties": False}
    )
    for name, field in model.model_fields.items() if model is not None else ():
        if (
            field.default_factory is not None
        ):  # pydantic leaves it out; what `$ref` shows are others' defaults
            made = default_of(field)
            if isinstance(made, NoDefault):
                continue
            schema["properties"][field.alias or name]["default"] = to_jsonable_python(made, fallback=str)
    if entry.kind in DECLARING and policy is not None:
        schema["policy"] = policy.model_json_schema()
    description = inspect.getdoc(described)
    return {**schema, "description": description.partition("\n\n")[0]} if description else schema
