"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from coterie.core.errors import UserError

F = TypeVar("F", bound=Callable[..., Any])


def overrides(words: Sequence[str]) -> tuple[str, ...]:
    """Check that each word is `key=value`; what key and value may be is the configuration's to say.

    Raises:
        UserError: a word without `=`.
    """
    for word in words:
        if "=" not in word:
            raise UserError(
                f"'{word}' is no override",
                why="after the recipe come settings, as key=value",
                fix="e.g. schedule.steps=100; `coterie config RECIPE` lists the keys",
            )
    return tuple(words)


def source_and_overrides(words: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """`[RECIPE|FILE] [key=value ...]`: the first word is the source unless it is an override."""
    if words and ("=" not in words[0] or Path(words[0]).exists()):
        return words[0], overrides(words[1:])
    return None, overrides(words)


def _load_plugins(ctx: click.Context, parameter: click.Parameter, files: Sequence[Path]) -> None:
    if files and not ctx.resilient_parsing:
        from coterie.api.plugin_files import load_plugin_file
        from coterie.core.plugins import plugins

        for file in files:
            load_plugin_file(plugins(), file)


def plugin_option(command: F) -> F:
    """`-p FILE`, repeatable; loaded before the command runs."""
    return click.option(
        "-p",
        "--plugin",
        "plugin_files",
        metavar="FILE",
        type=click.Path(path_type=Path),
        multiple=True,
        callback=_load_plugins,
        expose_value=False,
        help="Load one Python file as a plugin (repeatable).",
    )(command)


scale_option = click.option(
    "--scale",
    metavar="NAME",
    help="A block of the recipe's `scales`: smoke, cpu, gpu.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on stdout.")
