"""A command: `coterie example-command`, beside Coterie's own.

It shows in a few lines what a recipe trains.
"""

import click

from coterie import Register, hookimpl, load


@click.command(short_help="Show what a recipe trains, in a few lines.")
@click.argument("recipe", default="example-name-smoke")
def command(recipe: str) -> None:
    """Show the game, the team and the schedule of RECIPE."""
    config = load(recipe).config  # a UserError goes to the terminal as it is, without a traceback
    click.echo(f"{recipe}: {config.summary}")
    click.echo(f"  game: {config.env['type']}")
    for name, role in config.team.roles.items():
        click.echo(f"  role: {name}, played by policy {role['policy']}")
    click.echo(f"  algorithm: {config.algorithm['type']}, {config.schedule.steps} steps")


# The name is what users type, so it must not be one of Coterie's own commands.
@hookimpl
def register_commands(register: Register) -> None:
    register("example-command", command)
