"""`build`: one component, made as a run makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.compose.builder import ComponentBuilder
from coterie.compose.kinds import PROTOCOL
from coterie.compose.policies import run_config
from coterie.compose.tables import DEFAULT_TYPES, MAPS, TABLES
from coterie.core.config import PolicyConfig, RunConfig
from coterie.core.errors import PluginError, did_you_mean
from coterie.core.plugins import as_table
from coterie.core.types import as_tuple
from coterie.testing.support.toys import GAME, ROLE

_PLACE_OF = {kind: table for table, kind in {**TABLES, **MAPS}.items()}


def build(
    kind: str,
    table: str | Mapping[str, Any],
    *,
    name: str = "",
    order: Sequence[str | Sequence[str]] | None = None,
    env: Any = None,
    **run: Any,
) -> Any:
    """One component, made from its table of a configuration as a run makes it.

    The plugin's own Config validates the table, composed fields are built, and the constructor receives a
    `BuildContext` whose run holds this component in a small team.

    Args:
        kind: "environment", "role", "reward", ...
        table: its table, `{"type": ..., ...}`, or only the type: a registered name, or
            `package.module:Object`, which needs no registration.
        name: the instance's name in the configuration; for a role its key in `team.roles`.
        order: `team.order`; by default the role `name`, or one role `solver`.
        env: the table of the environment that the component is used with; by default the kit's toy game.
        run: other top-level tables of the configuration, e.g. `data={...}` or `seed=3`.

    Raises:
        UserError: the error that a run raises for the same table.
    """
    if kind not in PROTOCOL:
        raise PluginError(f"'{kind}' is no kind of component", fix=did_you_mean(kind, PROTOCOL))
    settings: dict[str, Any] = as_table(table if isinstance(table, str) else dict(table))
    if not name and kind in MAPS.values():  # `mine` for `package.module:Mine`
        name = str(settings.get("type", "")).rpartition(":")[2].rpartition(".")[2].lower()
    name = name or ("solver" if kind == "role" else "")
    if order is None:
        order = [name if kind == "role" else "solver"]
    environment = as_table(settings if kind == "environment" else env or GAME)
    builder = ComponentBuilder(_config(environment, order, run))
    builder.environment = builder.make("environment", environment, "env")
    if kind == "environment":
        return builder.environment
    path = f"team.roles.{name}" if kind == "role" else ".".join(filter(None, (_PLACE_OF[kind], name)))
    return builder.make(kind, settings, path, name)


def _config(environment: Mapping[str, Any], order: Sequence[Any], run: Mapping[str, Any]) -> RunConfig:
    roles = {role: {"type": ROLE, "policy": "policy"} for stage in as_tuple(order) for role in stage}
    team = {"order": list(order), "max_turns": 3, "roles": roles}
    return run_config(
        {
            **DEFAULT_TYPES,
            "env": dict(environment),
            "team": team,
            "policies": {"policy": {"model": {"init": "none"}, "train": "none"}},
            "algorithm": {"type": "at_grpo"},
            "schedule": {"steps": 1},
            **run,
        },
    )


def declared_policy(plugin: Any) -> type[PolicyConfig]:
    """The schema that a trainer or an engine declares for policies; else `PolicyConfig`."""
    schema: type[PolicyConfig] = getattr(type(plugin), "Policy", PolicyConfig)
    return schema
