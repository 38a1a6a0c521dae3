"""Studies and columns by name, and the checks that hold one against the other."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from coterie.core.config import locate, read_yaml, resource_path, validate
from coterie.core.errors import ConfigError, PluginError, did_you_mean
from coterie.core.plugins import plugins
from coterie.studies.columns import ALONE, BASE, BESIDE, BY_ROLE, Column, ColumnConfig, Variant
from coterie.studies.study import Study

log = logging.getLogger("coterie")


def load_column(source: str | Path) -> Column:
    """A registered column by its name, or a YAML file.

    Raises:
        ConfigError: unknown, unreadable, or something in it is wrong; the path begins with the file's.
    """
    text = str(source)
    registry = plugins().registry
    if text.endswith((".yaml", ".yml")):
        path, name = Path(text), Path(text).stem
        if not path.is_file():
            raise ConfigError(f"no such column file: {path}", path="--columns")
    elif text in registry.names("column"):
        path, name = resource_path(registry.find("column", text).target), text
    else:
        raise ConfigError(
            f"unknown column '{text}'",
            path="--columns",
            fix=did_you_mean(text, registry.names("column")) + "  (a file's name ends in .yaml)",
        )
    return read_column(path, name)


def read_column(path: Path, name: str) -> Column:
    """The column in a file.

    Raises:
        ConfigError: see `load_column`.
    """
    table = read_yaml(path)
    forms = table.get("forms")
    if isinstance(forms, dict):
        # By role; models of their own, so that errors name the key and not a member of a union.
        by_role = {kind: forms[kind] for kind in BY_ROLE if kind in forms}
        table = {**table, "forms": {k: v for k, v in forms.items() if k not in by_role}, **by_role}
    try:
        read: ColumnConfig = validate(ColumnConfig, table)
        _check(read)
    except ConfigError as error:
        where = f"forms.{error.path}" if error.path.partition(".")[0] in BY_ROLE else error.path
        raise ConfigError(error.what, path=f"{path}: {where}", why=error.why, fix=error.fix) from None
    everything = dict(read.forms)
    for kind, forms in ((ALONE, read.alone), (BESIDE, read.beside)):
        everything |= {f"{kind}.{role}": form for role, form in forms.items()}
    swap = read.swap or ((read.roles[0], read.roles[1]) if len(read.roles) > 1 else None)
    return Column(
        name=name,
        path=path,
        title=read.title,
        roles=tuple(read.roles),
        swap=swap,
        forms={form: _beside(path, form, found) for form, found in everything.items()},
        scales=read.scales,
        paper=read.paper,
    )


def _beside(column: Path, name: str, form: Variant) -> Variant:
    """The form with its recipe found: a file's path is relative to the column's."""
    recipe = form.recipe
    if recipe.endswith((".yaml", ".yml")):
        recipe = str((column.parent / recipe).resolve())
    try:
        locate(recipe)
    except ConfigError as error:
        raise ConfigError(error.what, path=f"{column}: forms.{name}", why=error.why, fix=error.fix) from None
    return Variant(recipe=recipe, overrides=form.overrides)


def _check(read: ColumnConfig) -> None:
    """What pydantic can't say.

    Raises:
        ConfigError: a role, a form or a study that nobody knows.
    """
    known = {name: plugins().registry.load("study", name) for name in plugins().registry.names("study")}
    for place, roles in ((ALONE, read.alone), (BESIDE, read.beside), ("swap", read.swap or ())):
        for role in roles:
            if role not in read.roles:
                raise ConfigError(
                    f"unknown role '{role}'", path=f"{place}.{role}", fix=did_you_mean(role, read.roles)
                )
    used = {BASE, *(name for study in known.values() for name in _forms(study, read))}
    for name in read.forms:
        if name not in used:
            raise ConfigError(
                f"no study uses a form '{name}'", path=f"forms.{name}", fix=did_you_mean(name, used)
            )
    for name in read.paper:
        if name not in known:
            raise ConfigError(f"unknown study '{name}'", path=f"paper.{name}", fix=did_you_mean(name, known))
        ids = [row.id for row in known[name].rows(_sketch(read))]
        for row in read.paper[name]:
            if row not in ids:
                raise ConfigError(
                    f"study '{name}' has no row '{row}'",
                    path=f"paper.{name}.{row}",
                    fix=did_you_mean(row, ids),
                )


def _forms(study: Study, read: ColumnConfig) -> set[str]:
    return {form for row in study.rows(_sketch(read)) for form in row.forms}


def _sketch(read: ColumnConfig) -> Column:
    """Enough of the column for a study to say which rows it has."""
    return Column("", Path(), read.title, tuple(read.roles), read.swap, {}, read.scales, read.paper)


def load_study(name: str) -> Study:
    """A registered study.

    Raises:
        ConfigError: there is none of that name.
        PluginError: what is registered is no study.
    """
    registry = plugins().registry
    if name not in registry.names("study"):
        raise ConfigError(f"unknown study '{name}'", fix=did_you_mean(name, registry.names("study")))
    found = registry.load("study", name)
    if not isinstance(found, Study):
        raise PluginError(f"study '{name}' is a {type(found).__name__}", fix="a coterie.studies.Study")
    return found


def columns_of(study: Study, names: Sequence[str] | None, scale: str) -> list[Column]:
    """The columns that are named, or all registered ones that have what the study needs.

    Raises:
        ConfigError: an unknown or broken column, or none is left.
    """
    if names:
        twice = [name for name in dict.fromkeys(names) if list(names).count(name) > 1]
        if twice:
            raise ConfigError(f"column '{twice[0]}' is named twice", path="--columns")
        return [load_column(name) for name in names]
    found = []
    for name in plugins().registry.names("column"):
        column = load_column(name)
        lacking = sorted({f for row in study.rows(column) for f in row.forms} - set(column.forms))
        if lacking or scale not in column.scales:
            what = f"no form '{lacking[0]}'" if lacking else f"no scale '{scale}'"
            log.warning("column '%s' is left out: it has %s", name, what)
        else:
            found.append(column)
    if not found:
        raise ConfigError(
            "no column has what the study needs", path="--columns", fix="name one to see what it lacks"
        )
    return found
