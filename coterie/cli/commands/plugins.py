"""`coterie plugins`: the installed plugins and their errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.options import json_option, plugin_option
from coterie.cli.output import columns, print_json
from coterie.viewing.text import LONGEST_ERROR, message

if TYPE_CHECKING:
    from coterie.discovery import Report


@click.command(short_help="List the plugins and what is wrong with the broken ones.")
@json_option
@plugin_option
def command(as_json: bool) -> None:
    """List every plugin with its distribution, its components by kind, and its errors.

    A broken plugin is reported and does not stop a command, so the exit code is 0. COTERIE_PLUGINS=a,b limits
    third-party plugins, COTERIE_STRICT_PLUGINS=1 makes a broken one an error.
    """
    from coterie.discovery import plugins
    from coterie.recipes.listing import broken_files

    reports = [_with_files(report, broken_files) for report in plugins().reports]
    if as_json:
        print_json(
            [
                {
                    "name": report.name,
                    "distribution": report.distribution,
                    "version": report.version,
                    "ok": report.ok,
                    "provides": report.provides,
                    "errors": report.errors,
                }
                for report in reports
            ]
        )
        return
    click.echo("\n\n".join(_as_text(report) for report in reports))


def _with_files(report: Report, broken: Callable[[Any, str], list[str]]) -> Report:
    """The report, with the recipe files and overlays that aren't there."""
    errors = broken(report.provides, report.distribution)
    return replace(report, ok=report.ok and not errors, errors=[*report.errors, *errors])


def _as_text(report: Report) -> str:
    mark = click.style("ok", fg="green") if report.ok else click.style("broken", fg="red")
    lines = [" ".join(filter(None, (click.style(report.distribution, bold=True), report.version, mark)))]
    if report.name != report.distribution:
        lines[0] += f"  (entry point {report.name})"
    if report.provides:
        rows = [(kind, ", ".join(sorted(names))) for kind, names in report.provides.items()]
        lines.append(columns(rows, indent=2))
    for error in report.errors:
        first, *rest = message(error, LONGEST_ERROR).splitlines()
        lines += [f"  {click.style('error:', fg='red')} {first}", *(f"    {line.strip()}" for line in rest)]
    return "\n".join(lines)
