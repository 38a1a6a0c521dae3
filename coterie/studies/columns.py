"""A column of a study: one game, with the recipes of its variants, its budgets and the paper's figures.

title: Plan-Path
roles: [planner, executor]
forms:                        # variant -> a recipe, or {recipe, with, overrides}; `with` names overlays
  base: plan_path_base        # makes the weights that all methods start from, once for all seeds
  single: plan_path_single
  alone: {planner: plan_path_alone_planner, executor: plan_path_alone_executor}      # by role
  beside: {planner: plan_path_beside_planner, executor: plan_path_beside_executor}
test: [env.test=aime25]       # what the test alone reads: columns that differ by it share their trainings
scales:
  cpu: {tokens: 250000, tasks: 1000, overrides: []}
paper:                        # success in %, by study and method
  at-grpo-table1: {single: 5, single_grpo: 11}
notes:                        # how these figures compare, by study: a sentence under the table
  at-grpo-table1: The paper's board is larger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from coterie import ConfigError, did_you_mean

BASE = "base"
"""The variant that makes the common initial weights."""
SOLO = "alone"
"""Variants in which one role trains without teammates; the column file's key."""
WITH_FROZEN_PARTNER = "beside"
"""Variants in which one role trains in a team whose other policies are frozen; the column file's key."""
BY_ROLE = (SOLO, WITH_FROZEN_PARTNER)
"""Keys of the column file whose variants are listed by the role that trains."""


class ColumnTable(BaseModel):
    """A table of a column file: immutable, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class Variant(ColumnTable):
    """A recipe with its overlays and overrides."""

    recipe: str = Field(description="A recipe's name, or a YAML file beside the column's.")
    overlays: list[str] = Field(
        default_factory=list,
        alias="with",
        description="Names of overlays, or YAML files beside the column's; from left to right.",
    )
    overrides: list[str] = Field(default_factory=list, description="As `key=value`.")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        """`name` is short for `{recipe: name}`; `with: a,b` for `with: [a, b]`."""
        if isinstance(value, str):
            return {"recipe": value}
        given = value.get("with") if isinstance(value, dict) else None
        if not isinstance(given, str):
            return value
        return {**value, "with": list(dict.fromkeys(name.strip() for name in given.split(",")))}


class Scale(ColumnTable):
    """The budgets of one scale."""

    tokens: int = Field(ge=1, description="Generated tokens of every training run.")
    tasks: int = Field(ge=1, description="Test tasks of every evaluation.")
    overrides: list[str] = Field(default_factory=list, description="As `key=value`, for every variant.")
    base: bool | None = Field(
        None,
        description="Whether methods start from the weights that the variant `base` makes. Default: at scale "
        "cpu only; pretrained weights are common initial weights already.",
    )


class ColumnConfig(ColumnTable):
    """The contents of a column file, with the entries of `BY_ROLE` moved out of `forms`."""

    title: str
    roles: list[str] = Field(min_length=1)
    swap: tuple[str, str] | None = Field(None, description="Default: the first two roles.")
    forms: dict[str, Variant]
    alone: dict[str, Variant] = Field(default_factory=dict)
    beside: dict[str, Variant] = Field(default_factory=dict)
    test: list[str] = Field(
        default_factory=list,
        description="As `key=value`, what the test alone reads: evaluations have it, and trainings do not.",
    )
    scales: dict[str, Scale] = Field(min_length=1)
    paper: dict[str, dict[str, float]] = Field(default_factory=dict)
    notes: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Column:
    """A validated column."""

    name: str
    """As it is registered, or the file's stem."""
    path: Path
    """Of its file."""
    title: str
    """The game, as the table has it."""
    roles: tuple[str, ...]
    swap: tuple[str, str] | None
    """The two roles whose policies a method with `swapped` exchanges; None: one role."""
    variants: Mapping[str, Variant]
    """By name; those of `BY_ROLE` are `alone.<role>` and `beside.<role>`. Recipe files are absolute paths."""
    scales: Mapping[str, Scale]
    """By name: `cpu`, `gpu`."""
    paper: Mapping[str, Mapping[str, float]]
    """The paper's success in %, by study and method."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """How the paper's figures compare with ours, by study."""
    test: tuple[str, ...] = ()
    """Overrides of evaluations alone."""

    def variant(self, name: str) -> Variant:
        """The variant of this name.

        Raises:
            ConfigError: the column has no such variant.
        """
        if name not in self.variants:
            raise ConfigError(
                f"column '{self.name}' has no variant '{name}'",
                path=f"{self.path}: forms.{name}",
                why="a method of the study needs it",
                fix="add it under `forms`, or leave the column out with --columns",
            )
        return self.variants[name]

    def scale(self, name: str) -> Scale:
        """The scale of this name.

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
