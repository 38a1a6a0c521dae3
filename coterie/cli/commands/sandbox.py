"""`coterie sandbox`: run a program in a sandbox, and check what protects this host from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from coterie.cli.options import json_option, out_option, overrides, plugin_option
from coterie.cli.output import columns, print_json

if TYPE_CHECKING:
    from rich.text import Text

    from coterie.core.protocols import Program, Ran, Sandbox

T = TypeVar("T")
HELLO = "print(sum(range(10)))"


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
    from coterie.core.errors import UserError
    from coterie.core.protocols import Program
    from coterie.core.storage.atomic import written

    program = Program(
        code=_source(file),
        argv=tuple(argv),
        stdin="" if stdin is None else _text(stdin),
        files=_named(files),
        collect=tuple(collect),
    )

    async def go(sandbox: Sandbox) -> Ran:
        return await _ran(sandbox, program)

    out = out or Path()
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is no folder", path="--out", fix="name a folder with --out")
    result = _use(settings, go)
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

    async def probe(sandbox: Sandbox) -> tuple[Ran, list[Any], list[Any], list[str]]:
        from coterie.core.protocols import Program
        from coterie.core.protocols.sandbox import ReportsProtections

        result = await _ran(sandbox, Program(code=HELLO))
        protections: list[Any] = []
        if isinstance(sandbox, ReportsProtections):
            with _of_plugin(sandbox, "report"):
                protections = list(sandbox.report())
        fields = ("name", "active", "stops", "needs", "_asdict")
        if wrong := [row for row in protections if not all(hasattr(row, field) for field in fields)]:
            raise _wrong(sandbox, "report", wrong[0], "named tuples (name, active, stops, needs)")
        left_open: list[Any] = list(getattr(sandbox, "left_open", list)())
        return result, protections, left_open, list(getattr(sandbox, "warnings", list)())

    result, protections, left_open, warnings = _use(settings, probe)
    works = result.ok and result.stdout.split() == ["45"]
    if as_json:
        rows = {
            "protections": [protection._asdict() for protection in protections],
            "open": [row._asdict() for row in left_open],
        }
        print_json({"works": works, **rows, "warnings": warnings})
    else:
        ending = f"it does not run programs: {_ending(result)} {result.stderr}"
        click.echo("it runs programs" if works else ending)
        if protections:
            rows_shown = [_protection_row(protection) for protection in protections]
            click.echo(columns([*rows_shown, *(_open_row(row) for row in left_open)]))
        for warning in warnings:
            click.echo(f"warning: {warning}")
    raise SystemExit(0 if works else 1)


def _protection_row(protection: Any) -> tuple[Text, str, str]:
    from rich.text import Text

    active = Text("active", style="green") if protection.active else Text("missing", style="red")
    needs = f" (needs {protection.needs})" if protection.needs and not protection.active else ""
    return active, protection.name, f"stops {protection.stops}{needs}"


def _open_row(row: Any) -> tuple[Text, str, str]:
    from rich.text import Text

    return Text("open", style="red"), row.name, row.what


def _use(settings: Sequence[str], use: Callable[[Sandbox], Awaitable[T]]) -> T:
    """Open the sandbox of these settings, call `use` with it, and close it."""
    from coterie.core.errors import PolicyFault, SystemFault, UserError

    sandbox = _sandbox(settings)

    async def go() -> T:
        with _of_plugin(sandbox, "open"):
            await sandbox.open()
        try:
            return await use(sandbox)
        finally:
            with _of_plugin(sandbox, "close"):
                await sandbox.close()

    try:
        return asyncio.run(go())
    except (PolicyFault, SystemFault) as fault:
        raise UserError(str(fault), path="sandbox") from fault


async def _ran(sandbox: Sandbox, program: Program) -> Ran:
    """The result of a program. Raises PluginError where the sandbox returns something else."""
    from coterie.core.protocols import Ran

    with _of_plugin(sandbox, "run"):
        result: Any = await sandbox.run(program)
    if not isinstance(result, Ran):
        raise _wrong(sandbox, "run", result, "coterie.Ran")
    return result


@contextmanager
def _of_plugin(sandbox: Sandbox, method: str) -> Iterator[None]:
    """Turn what a sandbox raises, other than a fault or a user's error, into a PluginError that names it."""
    from coterie.core.errors import CoterieError, PluginError
    from coterie.core.plugins.origin import failure, origin_of

    try:
        yield
    except CoterieError:
        raise
    except Exception as error:
        if origin_of(sandbox).distribution == "coterie":  # a bug of Coterie's: with its traceback
            raise
        raise PluginError(failure(sandbox, method, error), path="sandbox") from error


def _wrong(sandbox: Sandbox, method: str, value: Any, fix: str) -> Exception:
    from coterie.core.errors import PluginError
    from coterie.core.plugins.origin import origin_of

    what = f"{origin_of(sandbox)}: {method} returned {value!r}"[:300]
    return PluginError(what, path="sandbox", fix=f"return {fix}")


def _sandbox(settings: Sequence[str]) -> Sandbox:
    from coterie.core.config import validate
    from coterie.core.errors import UserError
    from coterie.core.plugins.origin import Origin, record_origin
    from coterie.discovery import plugins
    from coterie.recipes import parse_override

    table: dict[str, Any] = {}
    for setting in overrides(settings):
        _put(table, parse_override(setting))
    name = table.pop("type", "local")
    if not isinstance(name, str) or not name.strip():
        raise UserError("no sandbox is named", path="sandbox.type", fix="leave it out, or set type=local")
    entry = plugins().registry.find("sandbox", name, path="sandbox.type")
    target: Any = entry.load("sandbox.type")
    sandbox: Sandbox = target(validate(target.Config, table, "sandbox"), None)
    record_origin(sandbox, Origin("sandbox", name, entry.distribution, "sandbox"))
    return sandbox


def _put(table: dict[str, Any], more: dict[str, Any]) -> None:
    """Merge `more` into a nested table."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(table.get(key), dict):
            _put(table[key], value)
        else:
            table[key] = value


def _named(files: Sequence[Path]) -> dict[str, bytes]:
    """Contents by the names that the files get in the working folder."""
    from coterie.core.errors import UserError

    contents: dict[str, bytes] = {}
    for path in files:
        if path.name in contents:
            why = "files are copied into one folder by their names"
            raise UserError(f"two files are named {path.name}", why=why, path="--file", fix="rename one")
        contents[path.name] = _read(path)
    return contents


def _read(path: Path) -> bytes:
    from coterie.core.errors import UserError

    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} can't be read", why=str(error)) from error


def _source(path: Path) -> str:
    """A Python file's text, decoded as Python does: by its coding cookie or its BOM, else as UTF-8."""
    import codecs
    import io
    import re
    import tokenize

    from coterie.core.errors import UserError

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
    from coterie.core.errors import UserError

    try:
        return _read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        fix = "convert it to UTF-8, or give it by --file and open it in the program"
        raise UserError(f"{path} is no UTF-8 text, as stdin must be", why=str(error), fix=fix) from error


def _as_json(result: Ran, out: Path) -> dict[str, Any]:
    return {
        "status": result.status,
        "exit_code": result.exit_code,
        "reason": result.reason,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "dropped": result.dropped,
        "cpu_seconds": result.cpu_seconds,
        "wall_seconds": result.wall_seconds,
        "files": [str(out / path) for path in result.files],
    }


def _ending(result: Ran) -> str:
    """How a program ended, in words."""
    dropped = f"{result.dropped:,} bytes of output were not kept" if result.dropped else ""
    return "; ".join(part for part in (result.status, result.reason, dropped) if part)
