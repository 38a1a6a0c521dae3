"""A click group that imports a command only when it is invoked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from coterie.cli.errors import reported
from coterie.core.errors import PluginError, UserError, did_you_mean, type_text


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
