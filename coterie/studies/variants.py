"""The variants of a column as configurations: resolved, checked, and what they train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie import ConfigError, Resolved, did_you_mean, load
from coterie.studies.columns import BY_ROLE, Column

TASKS = ("env", "data")
"""The tables that a column's `test` may change."""


def resolve(
    column: Column, name: str, scale: str, overrides: Sequence[str], *, tested: bool = False
) -> tuple[dict[str, Any], Resolved]:
    """(what a job starts from, the configuration) of a variant.

    A job starts from the recipe, its overlays, its scale if it has one of this name, and all overrides.

    Args:
        tested: with what the column's test alone reads.

    Raises:
        ConfigError: there is no such variant, or its recipe, scale or overrides are wrong.
    """
    variant = column.variant(name)
    combined = (*column.scale(scale).overrides, *variant.overrides, *overrides)
    combined += column.test if tested else ()
    start: dict[str, Any] = {"overlays": tuple(variant.overlays), "overrides": combined, "scale": scale}
    try:
        try:
            resolved = load(variant.recipe, **start)
        except ConfigError as error:
            if error.path != "--scale":
                raise
            start["scale"] = None
            resolved = load(variant.recipe, **start)
        return {"recipe": variant.recipe, **start}, resolved
    except ConfigError as error:
        where = f"{column.path}: forms.{name}"
        inner = f"{error.path}: {error.what}" if error.path else error.what
        raise ConfigError(inner, path=where, why=error.why, fix=error.fix) from None


def what_is_trained(policies: Mapping[str, Mapping[str, Any]]) -> str:
    """What the trained ones of some policies train, and their learning rates."""
    kinds = []
    for policy in policies.values():
        rate = (policy.get("optimizer") or {}).get("learning_rate")
        at = "" if rate is None else f", learning rate {float(rate):g}"
        if policy["train"] == "full":
            kinds.append(f"all weights{at}")
        elif policy["train"] == "lora":
            kinds.append(f"LoRA of rank {(policy.get('lora') or {}).get('rank', 'unknown')}{at}")
    return " and ".join(dict.fromkeys(kinds)) or "nothing"


def check_variants(column: Column) -> None:
    """Resolve every variant at every scale.

    Raises:
        ConfigError: the first error found.
    """
    for scale in column.scales:
        for name in column.variants:
            table = resolve(column, name, scale, [])[1].table
            check_test(column, name, scale)
            if name.partition(".")[0] in BY_ROLE:
                check_roles(column, name, table, (name.partition(".")[2],))
            elif name in ("shared", "per_role"):
                check_roles(column, name, table, column.roles)


def check_test(column: Column, variant: str, scale: str) -> None:
    """Refuse a test that plays another team than the trainings made, or plays it otherwise.

    Raises:
        ConfigError: with the first setting that isn't of the tasks.
    """
    if not column.test:
        return
    trained = resolve(column, variant, scale, [])[1].table
    played = resolve(column, variant, scale, [], tested=True)[1].table
    other = [key for key in played if played[key] != trained.get(key) and key not in TASKS]
    if other:
        raise ConfigError(
            f"`test` changes '{other[0]}'",
            path=f"{column.path}: test",
            why="trainings don't have it: a test has other tasks and the same team",
            fix=f"put it into the forms' overrides; `test` may change {' and '.join(TASKS)}",
        )


def check_roles(column: Column, variant: str, table: Mapping[str, Any], roles: Sequence[str]) -> None:
    known = table["team"]["roles"]
    for role in roles:
        if role not in known:
            raise ConfigError(
                f"the team has no role '{role}'",
                path=f"{column.path}: forms.{variant}",
                why="the column, or a method of the study, names it",
                fix=did_you_mean(role, known),
            )
