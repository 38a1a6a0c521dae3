"""`check_command`: a command is click's, and shows its help."""

from __future__ import annotations

from typing import Any

from coterie.core.errors import type_text
from coterie.testing.support.failure import require
from coterie.testing.support.promises import promise


def check_command(command: Any, where: str = "") -> None:
    """Check a command of the command line.

    - It is a click command, or a group of them.
    - `--help` of it, and of each command of a group, prints a help and exits with 0.

    Args:
        where: the place that errors name; by default the command's name.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    import click

    promise("it is a click command")
    where = where or str(getattr(command, "name", "") or "the command")
    require(isinstance(command, click.Command), f"is {type_text(command)}", where, fix="@click.command()")
    promise("it shows its help")
    _check_help(command, where, ())


def _check_help(command: Any, where: str, path: tuple[str, ...]) -> None:
    import click
    from click.testing import CliRunner

    done = CliRunner().invoke(command, ["--help"], prog_name=command.name)
    what = f"exits with {done.exit_code} for {' '.join((*path, '--help'))}"
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        what += f": {type(done.exception).__name__}: {done.exception}"
    require(done.exit_code == 0, what, where, fix="leave --help to click")
    described = bool((command.help or command.short_help or "").strip())
    require(described, "has no help", where, fix="give its function a docstring")
    if isinstance(command, click.Group):
        for name, inner in sorted(command.commands.items()):
            _check_help(inner, f"{where}: {name}", (*path, name))
