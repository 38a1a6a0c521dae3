"""Running the command: in this process where possible, in one of its own where that is the point."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from coterie.cli.main import cli
from coterie.discovery import plugins
from tests.cli.forks import python

ROOT = Path(__file__).parents[2]
TABULAR = ROOT / "tests" / "recipes" / "tabular.yaml"
INSTALLED = (ROOT, sys.prefix, sys.base_prefix)
"""The folders of modules that no test writes."""


def coterie(*arguments: object) -> Result:
    """In this process. `.exit_code`, `.stdout`, `.stderr`; `.exception` is a bug's."""
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="coterie")


def anew(*arguments: object, path: object = None, **environment: str) -> Result:
    """In this process, with what a new process would have: plugins that are discovered now, and modules of
    tests' folders that are imported now.

    Args:
        path: a folder that sys.path has meanwhile.
        environment: variables of the environment, meanwhile.
    """
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        # A file that is rewritten within a second, at the same size, would be taken for what was compiled.
        patch.setattr(sys, "dont_write_bytecode", True)
        for name, value in environment.items():
            patch.setenv(name, value)
        if path is not None:
            patch.syspath_prepend(str(path))
        plugins.cache_clear()
        try:
            return coterie(*arguments)
        finally:
            plugins.cache_clear()
            for name in set(sys.modules) - before:
                if _is_of_a_test(getattr(sys.modules[name], "__file__", None)):
                    del sys.modules[name]


def _is_of_a_test(file: str | None) -> bool:
    """Whether a module's file is one that a test wrote."""
    return file is not None and not any(Path(file).is_relative_to(each) for each in INSTALLED)


def process(*arguments: object, code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, `code` run before; coterie is imported, torch is not."""
    script = textwrap.dedent(code) + "\nfrom coterie.cli.main import main\nmain()"
    return python(script, *map(str, arguments), environment={**os.environ, **environment})


def plugin_package(folder: Path, name: str, code: str) -> str:
    """An installed distribution, as far as importlib can tell; put the returned path on PYTHONPATH."""
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(textwrap.dedent(code))
    info = folder / f"{module}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[coterie]\n{module} = {module}\n")
    return str(folder)


def parsed(arguments: Sequence[str]) -> tuple[str, list[str], list[str], str | None]:
    """A command's recipe or run, overrides, overlays and scale; "" without a recipe.

    Raises:
        AssertionError: there is no such command.
        click.ClickException: it has no such option.
    """
    command: click.Command = cli
    rest = list(arguments)
    context = cli.make_context("coterie", [], resilient_parsing=True)
    while isinstance(command, click.Group):
        subcommand = command.get_command(context, rest[0])
        assert subcommand is not None, arguments
        command, rest = subcommand, rest[1:]
    params = command.make_context(arguments[0], rest, parent=context).params
    words = [word for word in (params.get("source"), *(params.get("arguments") or ())) if word]
    overrides = [word for word in (*words, *(params.get("settings") or ())) if "=" in word]
    source = next((word for word in words if "=" not in word), "")
    return source, overrides, list(params.get("overlays") or ()), params.get("scale")
