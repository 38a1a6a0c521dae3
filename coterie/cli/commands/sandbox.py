"""`coterie sandbox`: run a program in a sandbox, and check what protects this host from it."""

from __future__ import annotations

import codecs
import io
import re
import tokenize
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.options import json_option, out_option, plugin_option, settings_table
from coterie.cli.output import columns, print_json
from coterie.core.errors import UserError

if TYPE_CHECKING:
    from rich.text import Text

    from coterie.core.protocols import Ran


@click.group(short_help="Run a program in a sandbox, or check its protections.")
def command() -> None:
    """Run a program in a sandbox, or check its protections.

    Settings are those of a recipe's table `sandbox`, as key=value; the default `type` is `local`.
    """


@command.command(short_help="Run a Python file like a program that a model wrote.")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.argument("settings", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--arg", "argv", metavar="TEXT", multiple=True, help="An argument of the program (repeatable).")
@click.option(
    "--stdin", metavar="FILE", type=click.Path(path_type=Path), help="Standard input of the program, UTF-8."
)
@click.option(
    "--file", "files", metavar="FILE", type=click.Path(path_type=Path), multiple=True,
    help="A file to copy into its working folder (repeatable).",
)  # fmt: skip
@click.option("--collect", metavar="GLOB", multiple=True, help="Files to bring back (repeatable).")
@out_option("DIR", default="the current one", more="of the files that --collect brings back")
@json_option
@plugin_option
def run(
    file: Path,
    settings: Sequence[str],
    argv: Sequence[str],
    stdin: Path | None,
    files: Sequence[Path],
    collect: Sequence[str],
    out: Path | None,
    as_json: bool,
) -> None:
    """Run a Python file like a program that a model wrote: without network or view of this host, and limited.

    Its output goes to stdout and stderr; of long output, the end. Exits 0 where the program finished, else 1.
    """
    from coterie.analysis.diagnosis.sandboxes import ran, use_sandbox
    from coterie.core.protocols import Program
    from coterie.core.storage.atomic import written

    program = Program(
        code=_source(file),
        argv=tuple(argv),
        stdin="" if stdin is None else _text(stdin),
        files=_named(files),
        collect=tuple(collect),
    )

    out = out or Path()
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is no folder", path="--out", fix="name a folder with --out")
    result = use_sandbox(settings_table(settings), lambda sandbox: ran(sandbox, program))
    if not as_json:  # before the files, which may not be written
        click.echo(result.stdout, nl=False)
        click.echo(result.stderr, nl=False, err=True)
        if not result.ok or result.reason or result.dropped:
            click.echo(_ending(result), err=True)
    if existing := sorted(str(path) for path in result.files if (out / path).exists()):
        what = f"{out / existing[0]} exists, and the program wrote a file of this name"
        raise UserError(what, path="--out", fix="name another folder with --out")
    for path, data in result.files.items():
        with written(out / path):
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            (out / path).write_bytes(data)
    if as_json:
        print_json(_as_json(result, out))
    raise SystemExit(0 if result.ok else 1)


@command.command(short_help="Show which protections are active on this host.")
@click.argument("settings", metavar="[KEY=VALUE]...", nargs=-1)
@json_option
@plugin_option
def check(settings: Sequence[str], as_json: bool) -> None:
    """Open a sandbox, run a small program in it, and show which protections are active on this host,
    and what is open without namespaces.

    Exits 1 where the program's output is not the expected one.
    """
    from rich.text import Text

    from coterie.analysis.diagnosis.sandboxes import check_sandbox

    checked = check_sandbox(settings_table(settings))
    if as_json:
        rows = {
            "protections": [protection._asdict() for protection in checked.protections],
            "open": [row._asdict() for row in checked.left_open],
        }
        print_json({"works": checked.works, **rows, "warnings": checked.warnings})
    else:
        ending = f"it does not run programs: {_ending(checked.result)} {checked.result.stderr}"
        click.echo("it runs programs" if checked.works else ending)
        if checked.protections:
            rows_shown = [_protection_row(protection) for protection in checked.protections]
            opening = Text("open", style="red")
            click.echo(columns([*rows_shown, *((opening, row.name, row.what) for row in checked.left_open)]))
        for warning in checked.warnings:
            click.echo(f"warning: {warning}")
    raise SystemExit(0 if checked.works else 1)


def _protection_row(protection: Any) -> tuple[Text, str, str]:
    from rich.text import Text

    active = Text("active", style="green") if protection.active else Text("missing", style="red")
    needs = f" (needs {protection.needs})" if protection.needs and not protection.active else ""
    return active, protection.name, f"stops {protection.stops}{needs}"


def _named(files: Sequence[Path]) -> dict[str, bytes]:
    """Contents by the names that the files get in the working folder."""
    contents: dict[str, bytes] = {}
    for path in files:
        if path.name in contents:
            why = "files are copied into one folder by their names"
            raise UserError(f"two files are named {path.name}", why=why, path="--file", fix="rename one")
        contents[path.name] = _read(path)
    return contents


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} can't be read", why=str(error)) from error


def _source(path: Path) -> str:
    """A Python file's text, decoded as Python does: by its coding cookie or its BOM, else as UTF-8."""
    data = _read(path)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        fix = "save it as UTF-8, or name its encoding in its first line: # -*- coding: latin-1 -*-"
        raise UserError(f"{path} can't be decoded", why=str(error), fix=fix) from error
    if codecs.lookup(encoding.removesuffix("-sig")).name == "utf-8":
        return text
    # The sandbox runs the text as UTF-8, so a cookie of another encoding must not stay.
    lines = text.splitlines(keepends=True)
    for at, line in enumerate(lines[:2]):
        lines[at] = re.sub(r"^([ \t\f]*#.*?coding[:=][ \t]*)[-\w.]+", r"\1utf-8", line)
    return "".join(lines)


def _text(path: Path) -> str:
    try:
        return _read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        fix = "convert it to UTF-8, or give it by --file and open it in the program"
        raise UserError(f"{path} is no UTF-8 text, as stdin must be", why=str(error), fix=fix) from error


def _as_json(result: Ran, out: Path) -> dict[str, Any]:
    names = ["status", "exit_code", "reason", "stdout", "stderr", "dropped", "cpu_seconds", "wall_seconds"]
    return {name: getattr(result, name) for name in names} | {"files": [str(out / p) for p in result.files]}


def _ending(result: Ran) -> str:
    """How a program ended, in words."""
    dropped = f"{result.dropped:,} bytes of output were not kept" if result.dropped else ""
    return "; ".join(part for part in (result.status, result.reason, dropped) if part)
