"""`coterie check`: the conformance kit from the shell."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from coterie.cli.options import json_option
from coterie.cli.output import print_json
from coterie.core.errors import UserError

if TYPE_CHECKING:
    from coterie.testing.checking.apart import CheckedTarget
    from coterie.testing.checking.results import Checked

_LOOK = 0.25
"""Seconds between two looks at the files."""


@click.command(short_help="Check plugins: which promises they keep and break.")
@click.argument("target", metavar="NAME|MODULE|FILE.py|DIST")
@click.option("--kind", metavar="KIND", help="Only components of this kind.")
@click.option("--watch", is_flag=True, help="Check again when a file changes, until Ctrl-C.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    help="Time for the check of one component.",
)
@click.option(
    "-v", "--verbose", is_flag=True, help="Name the promises that are kept, of more than 8 components too."
)
@json_option
def command(target: str, kind: str | None, watch: bool, timeout: float, verbose: bool, as_json: bool) -> None:
    """Check a component by its registered NAME (also KIND:NAME, DIST:NAME, MODULE:Class), or every component
    of a MODULE, of a FILE.py, which is loaded as by -p, or of an installed distribution.

    The report says which promises of its kind a component keeps; which it breaks, where, how to fix it, and
    with which smallest example; and what was not checked and why. Each is checked in a process of its own,
    with its registered examples, else with what recipes of its distribution and the kit give.

    Exit codes: 0 all kept, 1 one is broken, 2 wrong usage.
    """
    if watch and as_json:
        raise click.UsageError("--watch and --json exclude each other")
    if watch:
        _watch(target, kind, timeout, verbose)
        return
    outcome = _once(target, kind, timeout, verbose, show=not as_json)
    if as_json:
        components = [part.table() for part in outcome.results]
        print_json({"target": target, "ok": outcome.ok, "components": components})
    if not outcome.ok:
        raise click.exceptions.Exit(1)


def _once(
    target: str, kind: str | None, timeout: float, verbose: bool, *, show: bool = True
) -> CheckedTarget:
    from coterie.testing.checking.apart import check_apart
    from coterie.testing.checking.results import SHORT, of_component, summary

    def tell(result: Checked, count: int) -> None:
        if show:
            click.echo(_coloured(of_component(result, every=verbose or count <= SHORT)))

    outcome = check_apart(target, kind, timeout=timeout, on_result=tell)
    if show:
        click.echo(summary(outcome.results))
    return outcome


def _coloured(text: str) -> str:
    for word, colour in (
        (": BROKEN (", "red"),
        (": ok (", "green"),
        (": not checked (", "yellow"),
        (": in part (", "yellow"),
    ):
        first, at, rest = text.partition("\n")
        text = first.replace(word, f": {click.style(word[2:-2], fg=colour)} (") + at + rest
    return text


def _watch(target: str, kind: str | None, timeout: float, verbose: bool) -> None:
    """Check again and again, until Ctrl-C."""
    files, broken = list[str](), True
    try:
        times = _times(_watched(target, files, broken))
        while True:
            began = time.time()
            try:
                outcome = _once(target, kind, timeout, verbose)
                files, broken = outcome.files or files, not outcome.ok
            except UserError as error:
                if not files:
                    raise
                click.echo(str(error), err=True)
            watched = _watched(target, files, broken)
            click.echo(f"watching {len(watched)} files; Ctrl-C ends\n")
            sys.stdout.flush()
            before = _times(watched)  # a file that was saved during the check has another time
            before |= {path: 0.0 for path, at in before.items() if began < at <= time.time()}
            before |= {path: at for path, at in times.items() if path in before}
            while (times := _times(watched)) == before:
                time.sleep(_LOOK)
    except KeyboardInterrupt:
        click.echo("stopped", err=True)


def _watched(target: str, files: list[str], broken: bool) -> list[Path]:
    """The files of a target: those that were imported, and the target's own where none could be."""
    from importlib.machinery import PathFinder

    paths = {Path(file).resolve() for file in files}
    if target.endswith(".py"):
        paths.add(Path(target).resolve())
    elif broken or not files:  # its module may not be among those that were imported
        module = next((part for part in target.split(":") if "." in part), target)
        spec = PathFinder.find_spec(module.partition(".")[0], [*sys.path, os.getcwd()])
        spec = None if spec is not None and spec.name == "coterie" else spec
        for place in (spec and spec.submodule_search_locations) or ():
            paths |= set(Path(place).resolve().rglob("*.py"))
        if spec is not None and spec.origin and Path(spec.origin).is_file():
            paths.add(Path(spec.origin).resolve())
    return sorted(paths)


def _times(paths: list[Path]) -> dict[Path, float]:
    return {path: path.stat().st_mtime if path.is_file() else 0.0 for path in paths}
