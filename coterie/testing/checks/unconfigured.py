"""`check_column`, `check_command`, `check_study`: what is registered and has no table in a configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError, UserError, did_you_mean, type_text
from coterie.discovery import plugins
from coterie.testing.support.failure import ConformanceError, guarded, require
from coterie.testing.support.promises import promise


def check_column(target: Any, where: str = "") -> None:
    """Check a column: the YAML file that `register_columns` names.

    - The file exists, and holds the fields that `coterie.studies.columns` describes and no others.
    - The recipe of every variant exists, and is a sound configuration with the overrides of the variant and
      of each scale.
    - The column's roles are in the teams of the variants that train them, each in one team at least; its
      figures belong to methods of registered studies.

    Args:
        target: a path, or `"package:file.yaml"`.
        where: the place that errors name; by default the target.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    from coterie.recipes import resource_path
    from coterie.studies.catalogue import read_column
    from coterie.studies.variants import check_variants, resolve

    where = where or str(target)
    with guarded(where, "a path, or `package:file.yaml`"):
        path = Path(resource_path(target))
    require(path.is_file(), f"there is no file {path}", where, fix="a path, or `package:file.yaml`")
    try:
        column = read_column(path, path.stem)
        check_variants(column)
        scale = next(iter(column.scales))
        teams = [resolve(column, name, scale, [])[1].table["team"]["roles"] for name in column.variants]
    except CoterieError as error:
        raise ConformanceError(str(error), where=where, fix="see docs/reproduce.md") from error
    known = list(dict.fromkeys(role for team in teams for role in team))
    for role in column.roles:
        what = f"`roles` names '{role}', which no variant's team has"
        require(role in known, what, where, fix=did_you_mean(role, known))


def check_command(command: Any, where: str = "") -> None:
    """Check a command of the command line.

    - It is a click command, or a group of them.
    - `--help` of it, and of each command of a group, prints a help and exits with 0.

    Args:
        where: the place that errors name; by default the command's name.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    import click

    promise("it is a click command")
    where = where or str(getattr(command, "name", "") or "the command")
    require(isinstance(command, click.Command), f"is {type_text(command)}", where, fix="@click.command()")
    promise("it shows its help")
    _check_help(command, where, ())


def _check_help(command: Any, where: str, path: tuple[str, ...]) -> None:
    import click
    from click.testing import CliRunner

    done = CliRunner().invoke(command, ["--help"], prog_name=command.name)
    what = f"exits with {done.exit_code} for {' '.join((*path, '--help'))}"
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        what += f": {type(done.exception).__name__}: {done.exception}"
    require(done.exit_code == 0, what, where, fix="leave --help to click")
    described = bool((command.help or command.short_help or "").strip())
    require(described, "has no help", where, fix="give its function a docstring")
    if isinstance(command, click.Group):
        for name, inner in sorted(command.commands.items()):
            _check_help(inner, f"{where}: {name}", (*path, name))


def check_study(study: Any, where: str = "", *, columns: Sequence[Any] | None = None) -> None:
    """Check a study on columns.

    - It is a `coterie.Study` with a summary.
    - `methods` gives methods of a column, the same ones twice, with ids that differ; or it refuses a column
      with a UserError. At least one column has all variants that its methods need.
    - The methods that its claims compare, that gains are over and that its analysis reads are among them.

    Args:
        where: the place that errors name; by default the summary.
        columns: `coterie.Column`s to try; by default every registered one that is sound.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    from coterie.studies import Study

    promise("it is a coterie.Study")
    where = where or str(getattr(study, "summary", "the study"))
    require(isinstance(study, Study), f"is {type_text(study)}", where, fix="a coterie.Study")
    sound = isinstance(study.summary, str) and study.summary.strip()
    require(sound, f"has the summary {study.summary!r}", where, fix="a sentence")
    promise("its methods, claims and gains belong together")
    tried = _columns() if columns is None else columns
    lacks = [_lacking(study, column, where) for column in tried]
    suits = any(not missing for missing in lacks)
    what = f"no column has the variants that its methods need: {', '.join(sorted(set(filter(None, lacks))))}"
    require(suits or not tried, what, where, fix="register a column with these variants")


def _columns() -> list[Any]:
    from coterie.studies.catalogue import load_column

    columns = []
    for name in plugins().registry.names("column"):
        try:
            columns.append(load_column(name))
        except UserError:
            continue  # told by the column's own check
    return columns


def _lacking(study: Any, column: Any, where: str) -> str:
    """A variant that a study's methods need and a column lacks; empty: the column suits it."""
    from coterie.studies import Method

    with guarded(f"{where}: methods", "a column -> its methods"):
        try:
            methods, again = list(study.methods(column)), list(study.methods(column))
        except UserError as error:
            return str(error.what)
    at = f"{where}: methods of the column '{column.name}'"
    wrong = [method for method in methods if not isinstance(method, Method)]
    require(not wrong, f"have {wrong[:1]!r:.200}", at, fix="a coterie.Method")
    ids = [method.id for method in methods]
    require(ids == [method.id for method in again], "differ when called twice", at, fix="no draws")
    twice = [id_ for id_, count in Counter(ids).items() if count > 1]
    require(not twice, f"have the id '{', '.join(twice)}' twice", at, fix="an id a method")
    missing = sorted({name for method in methods for name in method.variants} - set(column.variants))
    if missing:
        return missing[0]
    named = {id_ for claim in study.claims for id_ in claim.methods}
    named |= {study.gain_over} if study.gain_over is not None else set()
    named |= {study.analysis.method} if study.analysis is not None else set()
    for id_ in sorted(named - set(ids)):
        what = f"lack '{id_}', which a claim, `gain_over` or the analysis names"
        require(False, what, at, fix=did_you_mean(id_, ids))
    return ""
