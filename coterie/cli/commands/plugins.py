"""`coterie plugins`: the installed plugins and their errors, what one of them is, and the hooks."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from coterie.cli.options import json_option, plugin_option
from coterie.cli.output import columns, print_json, table
from coterie.viewing.text import LONGEST_ERROR, harmless, message

if TYPE_CHECKING:
    from coterie.cli.plugin_details import Details
    from coterie.compose.described import Field
    from coterie.discovery import Report

MAY_CHANGE = (
    "resume: whether a resumed run may change it; exact: with bit-equal steps; asked: with --allow-change"
)


@click.group(
    short_help="List the plugins and what is wrong with the broken ones.", invoke_without_command=True
)
@click.option("--hooks", "list_hooks", is_flag=True, help="List every hook that a plugin may implement.")
@json_option
@plugin_option
@click.pass_context
def command(ctx: click.Context, as_json: bool, list_hooks: bool) -> None:
    """List every plugin with its distribution, its components by kind, and its errors.

    A broken plugin is reported and does not stop a command, so the exit code is 0. COTERIE_PLUGINS=a,b
    limits third-party plugins, COTERIE_STRICT_PLUGINS=1 makes a broken one an error. `coterie plugins show
    NAME` shows one.
    """
    if ctx.invoked_subcommand is not None:
        ctx.obj = as_json
        return
    if list_hooks:
        _list_hooks(as_json)
        return
    from coterie.discovery import plugins
    from coterie.recipes.listing import broken_files

    reports = []
    for report in plugins().reports:
        absent = broken_files(report.provides, report.distribution)
        reports.append(replace(report, ok=report.ok and not absent, errors=[*report.errors, *absent]))
    if as_json:
        print_json([asdict(report) for report in reports])
        return
    click.echo("\n\n".join(_as_text(report) for report in reports))


@command.command(short_help="Show one plugin: settings, example, where it comes from.")
@click.argument("name", metavar="NAME|KIND:NAME|DIST:NAME")
@json_option
@plugin_option
@click.pass_context
def show(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show what a plugin is: its docstring, its settings with defaults and meaning, a table for a recipe,
    its optional members, its distribution, module and file.

    NAME is that of a component, of all kinds that have it; or of a distribution, an entry point or a file of
    `-p`, broken or not.
    """
    from coterie.cli.plugin_details import details, find, of_report
    from coterie.discovery import plugins

    entries, reports = find(plugins(), name)
    shown = [details(plugins(), entry) for entry in entries]
    if as_json or ctx.obj:
        print_json([asdict(plugin) for plugin in shown] or [asdict(report) for report in reports])
        return
    texts = [_details_text(plugin) for plugin in shown]
    texts += [
        f"{_head(report)}\n{columns(list(of_report(report)), indent=2)}{_notes(report)}" for report in reports
    ]
    click.echo("\n\n".join(texts))


def _list_hooks(as_json: bool) -> None:
    from coterie.compose.described import hooks

    if as_json:
        print_json([asdict(hook) for hook in hooks()])
        return
    parts = [
        f"{click.style(hook.name, bold=True)}{hook.signature}\n  {hook.sentence}\n  called {hook.when}"
        for hook in hooks()
    ]
    click.echo("\n".join(parts))


def _as_text(report: Report) -> str:
    lines = [_head(report)]
    if report.provides:
        rows = [(kind, ", ".join(sorted(names))) for kind, names in report.provides.items()]
        lines.append(columns(rows, indent=2))
    return "\n".join(lines) + _notes(report)


def _head(report: Report) -> str:
    mark = click.style("ok", fg="green") if report.ok else click.style("broken", fg="red")
    line = " ".join(filter(None, (click.style(report.distribution, bold=True), report.version, mark)))
    return line + (f"  (entry point {report.name})" if report.name != report.distribution else "")


def _notes(of: Report | Details) -> str:
    """Its errors and warnings, each on lines of its own."""
    lines = []
    for label, color, texts in (("error", "red", of.errors), ("warning", "yellow", of.warnings)):
        for text in texts:
            first, *rest = message(text, LONGEST_ERROR).splitlines()
            lines += [
                f"  {click.style(label + ':', fg=color)} {first}",
                *(f"    {line.strip()}" for line in rest),
            ]
    return "".join(f"\n{line}" for line in lines)


def _details_text(of: Details) -> str:
    title = click.style(f"{of.kind} '{of.name}'", bold=True)
    where = of.file + (f", line {of.line}" if of.line else "")
    many = f"{len(of.hooks)} (coterie plugins show {of.distribution})"
    hooks = ", ".join(of.hooks) if len(of.hooks) <= 5 else many
    facts = [("from", f"{of.distribution} {of.version}".strip()), ("entry point", of.entry_point)]
    facts += [
        ("object", of.target if of.target != of.file else ""),
        ("file", where),
        ("hooks", hooks),
    ]
    parts = [
        f"{title}{_notes(of)}",
        columns([row for row in facts if row[1]], indent=2),
        harmless(of.docstring),
    ]
    parts += [_settings("settings", of.config), _settings("of a policy's table it reads", of.policy)]
    if of.members:
        rows = [(member.signature, member.meaning, member.capability) for member in of.members]
        parts.append(table(("optional member", "what it is", "capability"), rows))
    if of.example:
        head = click.style("in a recipe" if "\n" in of.example else "use", bold=True)
        lines = "\n".join(f"  {line}" for line in harmless(of.example).rstrip().splitlines())
        parts.append(f"{head}\n{lines}")
    return "\n\n".join(part for part in parts if part)


def _settings(title: str, fields: list[Field]) -> str:
    if not fields:
        return ""
    heads = (title, "type", "default", "resume", "meaning")
    rows = [
        (field.name, field.type, _default(field), field.may_change or "-", field.meaning or "-")
        for field in fields
    ]
    return table(heads, rows) + (f"\n({MAY_CHANGE})" if any(field.may_change for field in fields) else "")


def _default(field: Field) -> str:
    if field.required:
        return "required"
    if isinstance(field.default, dict) and field.type == "table":
        return "below"
    return "null" if field.default is None else json.dumps(field.default, ensure_ascii=False)
