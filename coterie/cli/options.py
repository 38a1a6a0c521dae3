"""Arguments and options that several commands share."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from coterie import logs
from coterie.core.errors import UserError

F = TypeVar("F", bound=Callable[..., Any])


def overrides(arguments: Sequence[str]) -> tuple[str, ...]:
    """Check that each argument is `key=value`. Keys and values are checked by the configuration.

    Raises:
        UserError: an argument without `=`.
    """
    for argument in arguments:
        if "=" not in argument:
            raise UserError(
                f"'{argument}' is no override",
                why="settings follow the recipe, as key=value",
                fix="e.g. schedule.steps=100; `coterie config RECIPE` lists the keys",
            )
    return tuple(arguments)


def settings_table(arguments: Sequence[str]) -> dict[str, Any]:
    """The nested table of overrides `key=value`.

    Raises:
        UserError: an argument without `=`, or one that is no setting.
    """
    from coterie.recipes.layers import parse_override
    from coterie.recipes.merging import Layers

    layers = Layers()
    for setting in overrides(arguments):
        layers.add(parse_override(setting), "override")
    return layers.table


def source_and_overrides(arguments: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Parse `[RECIPE|FILE] [key=value ...]`: the first argument is the source unless it is an override."""
    if arguments and ("=" not in arguments[0] or Path(arguments[0]).exists()):
        return arguments[0], overrides(arguments[1:])
    return None, overrides(arguments)


def sources_and_overrides(arguments: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Parse `SOURCE [SOURCE ...] [key=value ...]`: sources are the first arguments, as long as they are no
    overrides.

    Raises:
        UserError: there is no source, or one follows an override.
    """
    count = 0
    while count < len(arguments) and ("=" not in arguments[count] or Path(arguments[count]).exists()):
        count += 1
    if not count:
        fix = "name a recipe, a file or a run's folder before the settings"
        raise UserError(f"'{arguments[0]}' is a setting, and there is nothing to set it of", fix=fix)
    return tuple(arguments[:count]), overrides(arguments[count:])


def _load_plugins(ctx: click.Context, parameter: click.Parameter, files: Sequence[Path]) -> None:
    if files and not ctx.resilient_parsing:
        from coterie.discovery.files import load_plugin_file

        for file in files:
            load_plugin_file(file)


def plugin_option(command: F) -> F:
    """Add `-p FILE` (repeatable) to a command; the files are loaded before it runs.

    So are those that a run folder remembers, where one of the command's sources is one.
    """

    @functools.wraps(command)
    def with_remembered(*args: Any, **options: Any) -> Any:
        for source in options.get("arguments") or (options.get("source"),):
            if isinstance(source, str) and (Path(source) / "config.yaml").is_file():
                from coterie.api.run_record import recall

                recall(Path(source))
        return command(*args, **options)

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
    )(cast(F, with_remembered))


def out_option(
    metavar: str, *, default: str = "", more: str = "", required: bool = False, **settings: Any
) -> Callable[[F], F]:
    """Add `-o, --out PATH` to a command that writes: what it is called everywhere.

    Args:
        metavar: `DIR` for a folder, else `FILE` or the file's name.
        default: where the command writes without the option, for the help.
        more: what else the help says.
        settings: of `click.Path`.
    """
    what = "folder" if metavar == "DIR" else "file"
    shown = f" [{default}]" if default else ""
    return click.option(
        "-o",
        "--out",
        metavar=metavar,
        type=click.Path(path_type=Path, **settings),
        required=required,
        help=f"The {what} to write{shown}{'; ' if more else ''}{more}.",
    )


overwrite_option = click.option("--overwrite", is_flag=True, help="Replace the file that --out names.")


def check_file(out: Path | None, overwrite: bool) -> None:
    """Refuse a file that can't be written, before what may take hours.

    Raises:
        UserError: its folder is missing, or it is there and may not be replaced.
    """
    if out is not None and not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent}", path="--out", fix="create it first")
    if out is not None and out.exists() and not overwrite:
        fix = "name another file, or replace this one with --overwrite"
        raise UserError(f"{out} exists", path="--out", fix=fix)


class NumbersParam(click.ParamType):
    """Integers such as `0,1,2`.

    Args:
        name: what they are, for the error; `example` is one.
    """

    def __init__(self, name: str, example: str) -> None:
        self.name, self.example = name, example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"'{value}' is no list of {self.name}; e.g. {self.example}", param, ctx)


_scale_option = click.option(
    "--scale",
    metavar="NAME",
    help="A block of the recipe's `scales`: smoke, laptop, cpu, gpu.",
)
_with_option = click.option(
    "--with",
    "overlays",
    metavar="OVERLAY,...",
    multiple=True,
    help="Overlays over the recipe, from left to right: names or YAML files (repeatable).",
)


def layer_options(command: F) -> F:
    """Add `--with` and `--scale` to a command: the layers over its recipe."""
    return _with_option(_scale_option(command))


def _set_verbose(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if ctx.resilient_parsing:
        return
    if value and not logs.verbose():
        os.environ[logs.VERBOSE] = "1"
        ctx.call_on_close(lambda: os.environ.pop(logs.VERBOSE, None))
    if not value:
        from coterie.cli import terminal

        terminal.hold()


verbose_option = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=_set_verbose,
    help="Show what libraries and processes print, which is else in RUN/logs.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on stdout.")
