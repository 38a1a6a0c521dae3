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

BASE = "base"
ALONE = "alone"
BESIDE = "beside"
BY_ROLE = (ALONE, BESIDE)
"""Forms with an entry for each role that is trained: by itself, or beside teammates that are not."""


class Variant(Strict):
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
    forms: dict[str, Variant]
    alone: dict[str, Variant] = Field(default_factory=dict)
    beside: dict[str, Variant] = Field(default_factory=dict)
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
    forms: Mapping[str, Variant]
    """Those by role are `alone.<role>` and `beside.<role>`; recipes' files are absolute."""
    scales: Mapping[str, Scale]
    paper: Mapping[str, Mapping[str, float]]

    def form(self, name: str) -> Variant:
        """
        Raises:
            ConfigError: the column has no such form.
        """
        if name not in self.forms:
            raise ConfigError(
                f"column '{self.name}' has no form '{name}'",
                path=f"{self.path}: forms.{name}",
                why="a row of the study is made from it",
                fix="add it, or leave the column out with --columns",
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
                fix=did_you_mean(name, self.scales),
            )
        return self.scales[name]
