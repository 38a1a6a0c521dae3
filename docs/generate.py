"""Writes the pages that are made from the code: `python docs/generate.py`. A test fails when one is stale."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

HEAD = """\
# The command line

<!-- Made by docs/generate.py from the commands' own help: change it there. -->

Exit codes: 0 done; 1 it failed; 2 something in the input is wrong, and the message says what, why and how to
fix it; 130 interrupted. What is meant for machines goes to stdout, progress and warnings to stderr;
`COTERIE_DEBUG=1` adds the traceback to messages about wrong input. Commands of installed plugins are listed
by `coterie --help`.
"""


def cli_page() -> str:
    """`docs/cli.md`."""
    return HEAD + "".join(f"\n## {title}\n\n```text\n{text}\n```\n" for title, text in helps())


def helps() -> Iterator[tuple[str, str]]:
    """(heading, help text) of the group and of each built-in command."""
    from coterie.cli.main import COMMANDS, cli

    group = click.Context(cli, info_name="coterie", terminal_width=100, **cli.context_settings)
    text = cli.get_help(group)
    yield (
        "coterie",
        text.partition("\n\nCommands of plugins")[0],
    )  # what is installed here is not documentation
    for name in COMMANDS:
        command = cli.get_command(group, name)
        assert command is not None
        with click.Context(command, info_name=name, parent=group) as context:
            yield f"coterie {name}", command.get_help(context)
            for inner in command.list_commands(context) if isinstance(command, click.Group) else ():
                under = command.get_command(context, inner)
                assert under is not None
                with click.Context(under, info_name=inner, parent=context) as below:
                    yield f"coterie {name} {inner}", under.get_help(below)


if __name__ == "__main__":
    (Path(__file__).parent / "cli.md").write_text(cli_page(), encoding="utf-8")
