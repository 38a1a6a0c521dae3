"""`coterie`: the command line.

`coterie --help` imports this module alone: the short helps are in a table here, and a test holds them equal
to those of the commands.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from coterie import __version__
from coterie.cli.errors import reported
from coterie.core.errors import PluginError, UserError, did_you_mean, type_text

COMMANDS = {
    "run": "Train a team.",
    "plan": "Estimate what a run costs, without loading a model.",
    "eval": "Evaluate a run, or a recipe's untrained team.",
    "compare": "Compare runs or evaluations, paired by task.",
    "export": "Write a policy as a Hugging Face folder or a PEFT adapter.",
    "runs": "List the runs in a folder.",
    "watch": "Show how runs go, live in the terminal.",
    "plot": "Draw curves of runs, with intervals over seeds.",
    "report": "Write a run's curves, roles and episodes as one HTML file.",
    "doctor": "Check this machine, or say what is wrong with a run.",
    "episodes": "Print the episodes that match, readably.",
    "replay": "Play recorded steps again without a model, and compare.",
    "credit": "Show what each role and turn earned, and check it.",
    "coach": "Report how well a run's coach agrees with the verifier.",
    "recipes": "List the recipes.",
    "data": "Write tasks as files, split records by content, find leaks.",
    "config": "Show a configuration and where each value came from.",
    "explain": "Show what serves, reads and writes what of a configuration.",
    "schema": "Print the JSON Schema of configurations.",
    "sandbox": "Run a program in a sandbox, or check its protections.",
    "new": "Write a plugin package, or one file, that works.",
    "plugins": "List the plugins and what is wrong with the broken ones.",
    "check": "Check plugins: which promises they keep and break.",
    "reproduce": "Run a whole comparison, to its table with intervals.",
    "quickstart": "Train a small team from scratch on this machine, in minutes.",
}


class LazyGroup(click.Group):
    """Built-in commands from a table of short helps, third-party ones from the plugin registry.

    Args:
        package: the package of the built-in commands; command `x-y` is `<package>.x_y:command`.
        table: name -> short help of each built-in command, so that `--help` imports none of them.
    """

    def __init__(self, *args: Any, package: str, table: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self.package, self.table = package, table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.table, *plugin_commands()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.table:
            command: click.Command = import_module(f"{self.package}.{cmd_name.replace('-', '_')}").command
            return command
        if cmd_name in plugin_commands() or ":" in cmd_name:
            return _load(cmd_name)
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        command = self.get_command(ctx, name)
        if command is None and not ctx.resilient_parsing:
            fix = did_you_mean(name, self.list_commands(ctx))
            raise UserError(f"unknown command '{name}'", why=_absent(), fix=fix)
        return name, command, args[1:]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.table.items()))
        third_party = plugin_commands()
        if third_party:
            with formatter.section("Commands of plugins"):
                formatter.write_dl(
                    [(name, f"From {distribution}.") for name, distribution in third_party.items()]
                )

    # Errors that a user can fix become messages here too, since click answers `--help` while it parses.

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with reported():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with reported(), _command_named(self, ctx):
            return super().invoke(ctx)


@contextmanager
def _command_named(group: LazyGroup, ctx: click.Context) -> Iterator[None]:
    """A context in which a plugin's command is called. An exception that passes is noted with its plugin."""
    try:
        yield
    except Exception as error:
        name = ctx.invoked_subcommand
        if name and name not in group.table and not isinstance(error, UserError):  # its message is complete
            from coterie.discovery import plugins

            error.add_note(f"in {plugins().registry.find('command', name).label}")
        raise


def plugin_commands() -> dict[str, str]:
    """Third-party commands: name -> distribution. A name that another has is `distribution:name`."""
    if not _third_party():
        return {}  # the usual case, in which --help imports no plugin manager, pydantic or numpy
    from coterie.discovery import plugins

    registry = plugins().registry
    return {
        entry.name
        if registry.find("command", entry.name) is entry
        else f"{entry.distribution}:{entry.name}": entry.distribution
        for entry in registry.qualified("command")
        if entry.distribution != "coterie"
    }


def _third_party() -> bool:
    from importlib.metadata import entry_points

    return any(entry.dist is None or entry.dist.name != "coterie" for entry in entry_points(group="coterie"))


def _absent() -> str:
    """The plugins that are broken or left out: one of them may have a command that is unknown."""
    if not _third_party():
        return ""
    from coterie.discovery import plugins

    return "; ".join(plugins().registry.absent)


def _load(name: str) -> click.Command:
    from coterie.discovery import plugins

    entry = plugins().registry.find("command", name)
    command = entry.load()
    if not isinstance(command, click.Command):
        raise PluginError(
            f"{entry.label} is {type_text(command)}, and no click command",
            fix="decorate the function with @click.command()",
        )
    return command


@click.group(
    cls=LazyGroup,
    package="coterie.cli.commands",
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="coterie", message="%(prog)s %(version)s")
def cli() -> None:
    """Coterie trains teams of language models with reinforcement learning.

    Start with `coterie quickstart`, or with `coterie recipes` and `coterie run RECIPE`.
    """
    from coterie.cli.output import show_warnings

    show_warnings()


def main() -> None:
    """The console script. Exit codes: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    from coterie.cli import terminal

    terminal.take_over()
    try:
        cli(prog_name="coterie")
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # e.g. a task of a plugin that cancels itself
        import traceback

        from coterie.viewing.text import harmless

        # With its notes, which name the plugin that raised it.
        click.echo(harmless(traceback.format_exc()), err=True, nl=False)
        notes: list[str] = getattr(error, "__notes__", [])
        where = harmless(notes[0]) if notes else f"in coterie {__version__} or in a plugin"
        click.echo(
            f"\nThis is a bug {where}: please report it with the lines above and the command you gave.",
            err=True,
        )
        sys.exit(1)
