"""`coterie recipes`: the recipes that can be run."""

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

    known = recipes()
    if as_json:
        print_json([{"name": info.name, "summary": info.summary, "path": str(info.path)} for info in known])
        return
    click.echo(table(("recipe", "summary"), [(info.name, info.summary) for info in known]))
    click.echo("\ncoterie run RECIPE trains it; coterie config RECIPE shows it.")
