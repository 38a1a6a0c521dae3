"""A column of a study: one game, with the recipes of its forms, its budgets and the paper's figures.

title: Plan-Path
roles: [planner, executor]
forms:                        # form -> a recipe, or {recipe, overrides}
  base: plan_path_base        # makes the weights that all rows start from, once a seed
  single: plan_path_single
  alone: {planner: plan_path_alone_planner, executor: plan_path_alone_executor}      # by role
  beside: {planner: plan_path_beside_planner, executor: plan_path_beside_executor}
scales:
  cpu: {tokens: 250000, tasks: 1000, overrides: []}
paper:                        # success in %, by study and row
  at-grpo-table1: {single: 5, single_grpo: 11}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from coterie.core.config import Strict
from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins import plugins
from coterie.core.recipes import locate, read_yaml, resource_path
from coterie.core.validation import validate
from coterie.studies.design import Study

BASE = "base"
ALONE = "alone"
BESIDE = "beside"
BY_ROLE = (ALONE, BESIDE)
"""Forms with an entry for each role that is trained: by itself, or beside teammates that are not."""


class Form(Strict):
    """A recipe, and what is different from it."""

    recipe: str = Field(description="A recipe's name, or a YAML file beside the column's.")
    overrides: list[str] = Field(default_factory=list, description="As `key=value`.")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        """`name` is short for `{recipe: name}`."""
        return {"recipe": value} if isinstance(value, str) else value


class Scale(Strict):
    """Budgets of one scale."""

    tokens: int = Field(ge=1, description="Generated tokens of training, of every trained run.")
    tasks: int = Field(ge=1, description="Test tasks of every evaluation.")
    overrides: list[str] = Field(default_factory=list, description="As `key=value`, for every form.")
    base: bool | None = Field(
        None,
        description="Whether rows start from what the form `base` makes. Default: at scale cpu only; "
        "pretrained weights are a common start already.",
    )


class ColumnConfig(Strict):
    """The file."""

    title: str
    roles: list[str] = Field(min_length=1)
    swap: tuple[str, str] | None = Field(None, description="Default: the first two roles.")
    forms: dict[str, Form]
    alone: dict[str, Form] = Field(default_factory=dict)
    beside: dict[str, Form] = Field(default_factory=dict)
    scales: dict[str, Scale] = Field(min_length=1)
    paper: dict[str, dict[str, float]] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Column:
    """A column that was read and checked."""

    name: str
    path: Path
    title: str
    roles: tuple[str, ...]
    swap: tuple[str, str] | None
    forms: Mapping[str, Form]
    """Those by role are `alone.<role>` and `beside.<role>`; recipes' files are absolute."""
    scales: Mapping[str, Scale]
    paper: Mapping[str, Mapping[str, float]]

    def form(self, name: str) -> Form:
        """
        Raises:
            ConfigError: the column has no such form.
        """
        if name not in self.forms:
            raise ConfigError(
                f"column '{self.name}' has no form '{name}'",
                path=f"{self.path}: forms.{name}",
                why="a row of the study is made from it",
                mend="add it, or leave the column out with --columns",
            )
        return self.forms[name]

    def scale(self, name: str) -> Scale:
        """
        Raises:
            ConfigError: the column has no such scale.
        """
        if name not in self.scales:
            raise ConfigError(
                f"column '{self.name}' has no scale '{name}'",
                path=f"{self.path}: scales.{name}",
                mend=did_you_mean(name, self.scales),
            )
        return self.scales[name]


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
            mend=did_you_mean(text, registry.names("column")) + "  (a file's name ends in .yaml)",
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
        raise ConfigError(error.what, path=f"{path}: {where}", why=error.why, mend=error.mend) from None
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


def _beside(column: Path, name: str, form: Form) -> Form:
    """The form with its recipe found: a file's path is relative to the column's."""
    recipe = form.recipe
    if recipe.endswith((".yaml", ".yml")):
        recipe = str((column.parent / recipe).resolve())
    try:
        locate(recipe)
    except ConfigError as error:
        raise ConfigError(
            error.what, path=f"{column}: forms.{name}", why=error.why, mend=error.mend
        ) from None
    return Form(recipe=recipe, overrides=form.overrides)


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
                    f"unknown role '{role}'", path=f"{place}.{role}", mend=did_you_mean(role, read.roles)
                )
    used = {BASE, *(name for study in known.values() for name in _forms(study, read))}
    for name in read.forms:
        if name not in used:
            raise ConfigError(
                f"no study uses a form '{name}'", path=f"forms.{name}", mend=did_you_mean(name, used)
            )
    for name in read.paper:
        if name not in known:
            raise ConfigError(f"unknown study '{name}'", path=f"paper.{name}", mend=did_you_mean(name, known))
        ids = [row.id for row in known[name].rows(_sketch(read))]
        for row in read.paper[name]:
            if row not in ids:
                raise ConfigError(
                    f"study '{name}' has no row '{row}'",
                    path=f"paper.{name}.{row}",
                    mend=did_you_mean(row, ids),
                )


def _forms(study: Study, read: ColumnConfig) -> set[str]:
    return {form for row in study.rows(_sketch(read)) for form in row.forms}


def _sketch(read: ColumnConfig) -> Column:
    """Enough of the column for a study to say which rows it has."""
    return Column("", Path(), read.title, tuple(read.roles), read.swap, {}, read.scales, read.paper)
