"""The levels of `env.curriculum`, for every environment.

The environment of the table `env` is the target, and every evaluation is on it. A level is the same
environment with one field of its Config set to another value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field

from coterie.compose.tables import CURRICULUM
from coterie.core.config import Strict
from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins import Table, composed_fields
from coterie.core.protocols import Environment
from coterie.core.training.curriculum import Curriculum, CurriculumLevel
from coterie.discovery.validation import validate

PATH = f"env.{CURRICULUM}"


class CurriculumConfig(Strict):
    """The table `env.curriculum`."""

    field: str = Field(description="A field of the environment's settings.")
    values: list[Any] = Field(min_length=2, description="The field's values, level by level.")
    promote_at: float = Field(
        gt=0, le=1, description="Mean success of the latest training episodes that leads to the next level."
    )
    window: int = Field(200, ge=1, description="Number of latest episodes.")


def taken(env: Table) -> tuple[Any, Table]:
    """(the table of the curriculum or None, the rest of the table `env`)."""
    return env.get(CURRICULUM), {key: value for key, value in env.items() if key != CURRICULUM}


def make_curriculum(
    table: Any, env: Table, target: Environment, make: Callable[[Table], Environment]
) -> Curriculum | None:
    """The curriculum of a run, or None where the table is.

    Args:
        env: the target's table, without the curriculum.
        make: an environment from its table.

    Raises:
        ConfigError: a wrong setting, a field that the environment doesn't have, a value that it refuses, two
            values that are alike, or a field that changes what the roles or the rewards are.
    """
    if table is None:
        return None
    config: CurriculumConfig = validate(CurriculumConfig, table, PATH)
    model = getattr(type(target), "Config", None)
    if model is None or config.field not in model.model_fields:
        raise ConfigError(
            f"the environment '{env['type']}' has no field '{config.field}'",
            path=f"{PATH}.field",
            fix=did_you_mean(config.field, model.model_fields if model is not None else ()),
        )
    base = with_shared(env, target)
    levels: list[CurriculumLevel] = []
    for index, value in enumerate(config.values):
        path = f"{PATH}.values.{index}"
        try:
            environment = make({**base, config.field: value})
        except ConfigError as error:
            raise ConfigError(error.what, path=path, why=error.why, fix=error.fix) from None
        level = CurriculumLevel(value, environment, f"@{config.field}={value}")
        if level.suffix in [other.suffix for other in levels]:
            raise ConfigError("the value is there twice", path=path, why=f"got {value!r} again")
        check_same(level.environment, target, path)
        levels.append(level)
    return Curriculum(config.field, config.promote_at, config.window, levels)


def with_shared(env: Table, target: Environment) -> Table:
    """The table of an environment like the target, which shares what that is made of (a sandbox, records)."""
    model, settings = getattr(type(target), "Config", None), getattr(target, "config", None)
    composed = composed_fields(model) if model is not None else ()
    return {**env, **{name: getattr(settings, name, env[name]) for name in composed if name in env}}


def check_same(environment: Environment, target: Environment, path: str) -> None:
    """Refuse an environment with other roles, components or weights than the run's.

    Args:
        path: of the settings that it has in place of the run's.
    """
    for member in ("roles", "components", "weights"):
        value, wanted = getattr(environment, member), getattr(target, member)
        if value != wanted:
            raise ConfigError(
                f"the environment has other {member} with this value",
                path=path,
                why=f"{value} instead of {wanted}",
                fix=f"choose a field that leaves the {member} as they are",
            )
