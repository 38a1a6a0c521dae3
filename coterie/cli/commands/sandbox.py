"""`coterie sandbox`: run a program as a model's would be, and see what protects this host from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from coterie.cli.options import json_option, overrides, plugin_option
from coterie.cli.output import print_json

if TYPE_CHECKING:
    from coterie.core.protocols import Ran, Sandbox

T = TypeVar("T")
HELLO = "print(sum(range(10)))"


@click.group(short_help="Run a program in a sandbox, or check its protections.")
def command() -> None:
    """Run a program in a sandbox, or check its protections.

    Settings are those of a recipe's table `sandbox`, as key=value; without `type` it is `local`.
    """


@command.command(short_help="Run a Python file as a program that a model wrote.")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.argument("settings", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--arg", "argv", metavar="TEXT", multiple=True, help="An argument of the program (repeatable).")
@click.option("--stdin", metavar="FILE", type=click.Path(path_type=Path), help="What it reads.")
@click.option(
    "--file", "files", metavar="FILE", type=click.Path(path_type=Path), multiple=True,
    help="A file to lay into its working folder (repeatable).",
)  # fmt: skip
@click.option("--collect", metavar="GLOB", multiple=True, help="Files to bring back (repeatable).")
@click.option(
    "-o", "--out", metavar="DIR", type=click.Path(path_type=Path), default=Path(),
    help="Where those go; default: here.",
)  # fmt: skip
@json_option
@plugin_option
def run(
    file: Path,
    settings: Sequence[str],
    argv: Sequence[str],
    stdin: Path | None,
    files: Sequence[Path],
    collect: Sequence[str],
    out: Path,
    as_json: bool,
) -> None:
    """Run a Python file as a program that a model wrote: no network, no view of this host, within limits.

    Its output goes to stdout and stderr, the end of it where it is long. Exits 0 where it finished, else 1.
    """
    from coterie.core.protocols import Program

    program = Program(
        code=_read(file).decode("utf-8", "replace"),
        argv=tuple(argv),
        stdin="" if stdin is None else _read(stdin).decode("utf-8", "replace"),
        files={path.name: _read(path) for path in files},
        collect=tuple(collect),
    )
    ran = _with(settings, lambda sandbox: sandbox.run(program))
    for path, data in ran.files.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_bytes(data)
    if as_json:
        print_json(_told(ran, out))
    else:
        click.echo(ran.stdout, nl=False)
        click.echo(ran.stderr, nl=False, err=True)
        if not ran.ok or ran.reason or ran.dropped:
            click.echo(_words(ran), err=True)
    raise SystemExit(0 if ran.ok else 1)


@command.command(short_help="Say which protections are active on this host.")
@click.argument("settings", metavar="[KEY=VALUE]...", nargs=-1)
@json_option
@plugin_option
def check(settings: Sequence[str], as_json: bool) -> None:
    """Open a sandbox, run a small program in it, and say which protections are active on this host.

    Exits 1 where the program did not run as it should.
    """

    async def look(sandbox: Sandbox) -> tuple[Ran, list[Any]]:
        from coterie.core.protocols import Program

        ran = await sandbox.run(Program(code=HELLO))
        report = getattr(sandbox, "report", None)
        return ran, list(report()) if report is not None else []

    ran, protections = _with(settings, look)
    works = ran.ok and ran.stdout.split() == ["45"]
    if as_json:
        print_json({"works": works, "protections": [one._asdict() for one in protections]})
    else:
        click.echo("it runs programs" if works else f"it does not run programs: {_words(ran)} {ran.stderr}")
        for one in protections:
            mark = click.style("active ", fg="green") if one.active else click.style("missing", fg="red")
            needs = f" (needs {one.needs})" if one.needs and not one.active else ""
            click.echo(f"{mark}  {one.name:<24}stops {one.stops}{needs}")
    raise SystemExit(0 if works else 1)


def _with(settings: Sequence[str], use: Callable[[Sandbox], Awaitable[T]]) -> T:
    """Open the sandbox of these settings, use it, close it."""
    from coterie.core.errors import PolicyFault, SystemFault, UserError

    made = _made(settings)

    async def go() -> T:
        await made.open()
        try:
            return await use(made)
        finally:
            await made.close()

    try:
        return asyncio.run(go())
    except (PolicyFault, SystemFault) as fault:
        raise UserError(str(fault), path="sandbox") from fault


def _made(settings: Sequence[str]) -> Sandbox:
    from coterie.core.config import parse_override, validate
    from coterie.core.plugins import plugins

    table: dict[str, Any] = {}
    for word in overrides(settings):
        _put(table, parse_override(word))
    name = str(table.pop("type", "local"))
    target: Any = plugins().registry.load("sandbox", name, path="sandbox.type")
    made: Sandbox = target(validate(target.Config, table, "sandbox"), None)
    return made


def _put(table: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(table.get(key), dict):
            _put(table[key], value)
        else:
            table[key] = value


def _read(path: Path) -> bytes:
    from coterie.core.errors import UserError

    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} can't be read", why=str(error)) from error


def _told(ran: Ran, out: Path) -> dict[str, Any]:
    return {
        "status": ran.status,
        "exit_code": ran.exit_code,
        "reason": ran.reason,
        "stdout": ran.stdout,
        "stderr": ran.stderr,
        "dropped": ran.dropped,
        "cpu_seconds": ran.cpu_seconds,
        "wall_seconds": ran.wall_seconds,
        "files": [str(out / path) for path in ran.files],
    }


def _words(ran: Ran) -> str:
    parts = [ran.status, ran.reason, f"{ran.dropped:,} bytes of output were not kept" if ran.dropped else ""]
    return "; ".join(part for part in parts if part)
