"""`coterie recipes`: what can be run."""

from __future__ import annotations

import click

from coterie.cli.options import json_option, plugin_option
from coterie.cli.output import print_json, table


@click.command(short_help="List the recipes.")
@json_option
@plugin_option
def command(as_json: bool) -> None:
    """List the recipes: YAML files, one per experiment, of Coterie and of plugins."""
    from coterie.core.config import recipes

    found = recipes()
    if as_json:
        print_json([{"name": info.name, "summary": info.summary, "path": str(info.path)} for info in found])
        return
    click.echo(table(("recipe", "what"), [(info.name, info.summary) for info in found]))
    click.echo("\ncoterie run RECIPE trains it; coterie config RECIPE shows it.")
