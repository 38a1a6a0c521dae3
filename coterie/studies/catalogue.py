"""Studies and columns by name, and the checks of one against the other."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path

from coterie import (
    ConfigError,
    PluginError,
    UserError,
    did_you_mean,
    find_plugin,
    read_yaml,
    registered,
    validate,
)
from coterie.studies.columns import (
    BASE,
    BY_ROLE,
    SOLO,
    WITH_FROZEN_PARTNER,
    Column,
    ColumnConfig,
    Variant,
)
from coterie.studies.study import Study

log = logging.getLogger("coterie")


def load_column(source: str | Path) -> Column:
    """A registered column by its name, or a YAML file.

    Raises:
        ConfigError: the column is unknown, unreadable or invalid; the path begins with the file's.
    """
    try:
        path = find_plugin("column", source)
    except ConfigError as error:
        raise ConfigError(error.what, path="--columns", why=error.why, fix=error.fix) from None
    return read_column(path, str(source) if str(source) in registered("column") else path.stem)


def read_column(path: Path, name: str) -> Column:
    """The column in a file.

    Raises:
        ConfigError: see `load_column`.
    """
    table = read_yaml(path)
    forms = table.get("forms")
    if isinstance(forms, dict):
        # Variants by role get fields of their own, so that errors name the key and not a member of a union.
        by_role = {kind: forms[kind] for kind in BY_ROLE if kind in forms}
        table = {**table, "forms": {k: v for k, v in forms.items() if k not in by_role}, **by_role}
    try:
        config: ColumnConfig = validate(ColumnConfig, table)
        _check(config)
    except ConfigError as error:
        where = f"forms.{error.path}" if error.path.partition(".")[0] in BY_ROLE else error.path
        raise ConfigError(error.what, path=f"{path}: {where}", why=error.why, fix=error.fix) from None
    variants = dict(config.forms)
    for kind, of_roles in ((SOLO, config.alone), (WITH_FROZEN_PARTNER, config.beside)):
        variants |= {f"{kind}.{role}": variant for role, variant in of_roles.items()}
    swap = config.swap or ((config.roles[0], config.roles[1]) if len(config.roles) > 1 else None)
    return Column(
        name=name,
        path=path,
        title=config.title,
        roles=tuple(config.roles),
        swap=swap,
        variants={key: _with_path(path, key, variant) for key, variant in variants.items()},
        scales=config.scales,
        paper=config.paper,
        notes=config.notes,
        test=tuple(config.test),
    )


def _with_path(column: Path, name: str, variant: Variant) -> Variant:
    """The variant with absolute paths of its files, which the column's file gives relative to itself.

    Raises:
        ConfigError: there is no such recipe or overlay.
    """
    recipe, *overlays = (
        str((column.parent / source).resolve()) if source.endswith((".yaml", ".yml")) else source
        for source in (variant.recipe, *variant.overlays)
    )
    try:
        find_plugin("recipe", recipe)
        for overlay in overlays:
            find_plugin("overlay", overlay)
    except ConfigError as error:
        raise ConfigError(error.what, path=f"{column}: forms.{name}", why=error.why, fix=error.fix) from None
    return variant.model_copy(update={"recipe": recipe, "overlays": overlays})


def _check(config: ColumnConfig) -> None:
    """Check the names in a column file against its roles and the registered studies.

    Raises:
        ConfigError: a role, a variant, a study or a method is unknown.
    """
    studies = registered("study")
    needs = {name: needed for name in studies if (needed := _needs(name, _sketch(config))) is not None}
    named = {SOLO: config.alone, WITH_FROZEN_PARTNER: config.beside, "swap": config.swap or ()}
    for key, roles in named.items():
        for role in roles:
            _known(role, config.roles, f"unknown role '{role}'", f"{key}.{role}")
    used = {BASE, *(name for needed in needs.values() for _, variants in needed for name in variants)}
    for name in config.forms if len(needs) == len(studies) else ():  # a broken study may need any variant
        _known(name, used, f"no study uses a variant '{name}'", f"forms.{name}")
    for key, named_studies in (("paper", config.paper), ("notes", config.notes)):
        for name in named_studies:
            _known(name, studies, f"unknown study '{name}'", f"{key}.{name}")
    for name in (name for name in config.paper if name in needs):
        ids = [id_ for id_, _ in needs[name]]
        for id_ in config.paper[name]:
            _known(id_, ids, f"study '{name}' has no method '{id_}'", f"paper.{name}.{id_}")


def _known(name: str, known: Collection[str], what: str, path: str) -> None:
    if name not in known:
        raise ConfigError(what, path=path, fix=did_you_mean(name, known))


def _needs(name: str, column: Column) -> list[tuple[str, tuple[str, ...]]] | None:
    """(id, variants) of each method of a registered study; None: it is broken, which is no column's fault."""
    try:
        study = load_study(name)
    except UserError:
        return None
    try:
        return [(method.id, method.variants) for method in study.methods(column)]
    except UserError:  # it refuses the column
        return []
    except Exception:  # told where the study itself is checked or run
        return None


def _variants(study: Study, column: Column) -> set[str]:
    """The variants that the study's methods need."""
    return {variant for method in study.methods(column) for variant in method.variants}


def _sketch(config: ColumnConfig) -> Column:
    """A column whose paths are not resolved yet, which suffices for a study to list its methods."""
    roles, variants = tuple(config.roles), config.forms
    return Column("", Path(), config.title, roles, config.swap, variants, config.scales, config.paper)


def load_study(name: str) -> Study:
    """A registered study.

    Raises:
        PluginError: no study has this name, or what has it is not a `Study`.
    """
    study = find_plugin("study", name)
    if not isinstance(study, Study):
        what, owner = f"study '{name}' is no coterie.Study", f"`coterie plugins show {name}` says whose it is"
        raise PluginError(what, why=f"it is a {type(study).__name__}", fix=f"register a Study; {owner}")
    return study


def columns_of(study: Study, names: Sequence[str] | None, scale: str) -> list[Column]:
    """The named columns, or all registered columns that have the variants and the scale of the study.

    Raises:
        ConfigError: a named column is unknown, invalid or named twice, or no registered column is suitable.
    """
    if names:
        twice = [name for name in dict.fromkeys(names) if list(names).count(name) > 1]
        if twice:
            raise ConfigError(f"column '{twice[0]}' is named twice", path="--columns")
        return [load_column(name) for name in names]
    columns = []
    for name in registered("column"):
        try:
            column = load_column(name)
        except UserError as error:  # perhaps a stranger's
            log.warning("column '%s' is left out: %s", name, error)
            continue
        missing = sorted(_variants(study, column) - set(column.variants))
        if missing or scale not in column.scales:
            reason = f"no variant '{missing[0]}'" if missing else f"no scale '{scale}'"
            log.warning("column '%s' is left out: it has %s", name, reason)
        else:
            columns.append(column)
    if not columns:
        raise ConfigError(
            "no column has what the study needs",
            path="--columns",
            fix="name a column with --columns to see what it lacks",
        )
    return columns
