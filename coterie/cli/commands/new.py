"""`coterie new`: a package of plugins, or one file for `-p`, with small examples that work."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from coterie.cli.options import out_option
from coterie.core.errors import UserError
from coterie.core.plugins import KINDS


@click.command(short_help="Write a plugin package, or one file, that works.")
@click.argument("name", required=False)
@click.option(
    "-k",
    "--kind",
    "kinds",
    metavar="KIND",
    multiple=True,
    required=True,
    help=f"What it holds (repeatable): {', '.join(KINDS)}.",
)
@click.option(
    "--file",
    "file",
    metavar="NAME.py",
    type=click.Path(path_type=Path),
    help="Write one file for `-p`, and its recipe, instead of a package.",
)
@out_option("DIR", default="this one", more="the package's folder is made in it", file_okay=False)
@click.option("--author", metavar="NAME", default="", help="Named in the package's metadata.")
def command(
    name: str | None, kinds: tuple[str, ...], file: Path | None, out: Path | None, author: str
) -> None:
    """Write a package of plugins of one or more KINDs: code with a small example of each, tests, a recipe,
    and what a repository needs.

    The package NAME (word-games, say) passes its tests and its check as it is written, and its recipe runs on
    a CPU in seconds. All is written, or nothing.

    \b
    coterie new word-games --kind environment --kind role --kind reward --kind estimator
    coterie new --file squashed.py --kind estimator
    """
    from coterie import scaffold

    if (name is None) == (file is None):
        what = "there is no NAME" if name is None else f"both a NAME and --file {file} are given"
        fix = "coterie new word-games --kind environment, or coterie new --file word_games.py --kind role"
        raise UserError(what, fix=fix)
    try:
        if file is not None:
            _write_file(file, kinds, out or Path(), author)
        else:
            _write_package(str(name), kinds, out or Path(), author)
    except scaffold.ScaffoldError as error:
        raise UserError(error.what, why=error.why, fix=error.fix) from error


def _write_package(name: str, given: tuple[str, ...], out: Path, author: str) -> None:
    from coterie import scaffold

    if author and not (author.strip() and author.isprintable()):
        why = "a control character, or a byte that is no UTF-8, is in it" if author.strip() else "it is empty"
        raise UserError(f"--author {author!r} is no name", why=why, fix="a name in one line, or leave it out")
    kinds, added = scaffold.with_needed(given)
    names = scaffold.package_names(name, kinds, _taken())
    files = scaffold.package(names, kinds, author.strip())
    folder = out / names.distribution
    scaffold.write_folder(folder, files)
    _tell(added, scaffold.left_out(kinds))
    click.echo(f"{folder}/")
    click.echo(_tree(files))
    click.echo("\nNext:\n")
    for line in (
        f"cd {_quoted(folder)}",
        "pip install -e . pytest",
        "pytest",
        f"coterie check {names.distribution}",
        f"coterie run {names.recipe}",
    ):
        click.echo(f"  {line}")


def _write_file(file: Path, given: tuple[str, ...], out: Path, author: str) -> None:
    from coterie import scaffold

    if author:
        raise UserError(
            "--author has no effect with --file", why="one file has no metadata", fix="leave it out"
        )
    kinds, added = scaffold.with_needed(given)
    names = scaffold.file_names(file.name, kinds, _taken())
    files = scaffold.one_file(names, kinds)
    folder = out / file.parent
    scaffold.write_files(folder, files)
    _tell(added, scaffold.left_out(kinds))
    for written in files:
        click.echo(str(folder / written))
    module = folder / f"{names.module}.py"
    recipe = folder / f"{names.recipe}.yaml"
    click.echo(f"\nNext:\n\n  coterie check {_quoted(module)}")
    click.echo(f"  coterie run {_quoted(recipe)} -p {_quoted(module)}")


def _quoted(path: Path) -> str:
    """A path as a shell reads it."""
    return shlex.quote(str(path))


def _taken() -> Mapping[str, list[str]]:
    """The names of all installed plugins, by kind."""
    from coterie.discovery import plugins

    taken: dict[str, list[str]] = {}
    for report in plugins().reports:
        for kind, names in report.provides.items():
            taken.setdefault(kind, []).extend(names)
    return taken


def _tell(added: Mapping[str, str], left_out: Mapping[str, str]) -> None:
    for kind, why in added.items():
        click.echo(f"also of kind {kind}: {why}", err=True)
    for kind, why in left_out.items():
        click.echo(f"the recipe doesn't use the {kind.replace('_', ' ')}: {why}", err=True)


def _tree(files: Mapping[str, str]) -> str:
    """The paths of files as a tree, folders last."""
    lines, folders = [], dict[str, dict[str, str]]()
    for path, text in files.items():
        top, _, rest = path.partition("/")
        if rest:
            folders.setdefault(top, {})[rest] = text
        else:
            lines.append(f"  {top}")
    for top, inside in folders.items():
        lines.append(f"  {top}/")
        lines += [f"  {line}" for line in _tree(inside).splitlines()]
    return "\n".join(lines)
