"""`coterie recipes`: the recipes that can be run, and the overlays over them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from coterie.cli.options import json_option, plugin_option
from coterie.cli.output import bold, columns, print_json

if TYPE_CHECKING:
    from coterie.recipes import RecipeInfo


@click.command(short_help="List the recipes.")
@json_option
@plugin_option
def command(as_json: bool) -> None:
    """List the recipes and overlays, of Coterie and of plugins.

    A recipe is a YAML file: a game in one form. An overlay is a YAML file with settings for many recipes.
    Recipes are listed by environment, each with its roles (`a > b`: one after the other, `a + b`: at once)
    and the overlays that fit it: those that resolve with the recipe and change something.

    \b
        coterie run sudoku_split --with per_role,one_gpu
    """
    from coterie.recipes import list_overlays, recipes

    known, overlays = recipes(details=True), list_overlays()
    summaries = {info.name: info.summary for info in overlays}
    if as_json:
        print_json(
            [
                {**asdict(info), "overlays": {name: summaries[name] for name in info.overlays}}
                for info in known
            ]
        )
        return
    head = ("recipe", "roles", "summary", "overlays that fit")
    by_environment: dict[str, list[RecipeInfo]] = {}
    for info in known:
        by_environment.setdefault(info.environment, []).append(info)
    for environment in sorted(by_environment, key=lambda name: (not name, name)):
        click.echo(f"{environment or 'wrong recipes'}:")
        click.echo(columns([bold(head), *map(_row, by_environment[environment])], indent=2) + "\n")
    click.echo("overlays:")
    click.echo(columns([bold(("overlay", "summary")), *summaries.items()], indent=2))
    click.echo("\ncoterie run RECIPE --with OVERLAY,... trains it; coterie config RECIPE shows it.")


def _row(info: RecipeInfo) -> tuple[str, str, str, str]:
    return info.name, info.order, info.summary or " ".join(info.error.split()), ", ".join(info.overlays)
