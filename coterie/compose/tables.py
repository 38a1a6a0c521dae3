"""Tables of a configuration: the kinds of components, the keys that all have, deprecated settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, Field

from coterie import deprecations
from coterie.core.config import Strict
from coterie.core.plugins import Table, as_table

DEFAULT_TYPES: Table = {
    "sampler": {"type": "tree"},
    "loss": {"type": "ppo_clip"},
    "transition": {"type": "none"},
    "engine": {"type": "hf"},
    "trainer": {"type": "torch"},
    "executor": {"type": "local"},
    "chat": {"type": "auto"},
}
"""The lowest layer of every configuration: the plugins of tables that name none."""

TABLES: dict[str, str] = {
    "env": "environment",
    "sampler": "sampler",
    "algorithm": "estimator",
    "loss": "loss",
    "transition": "transition",
    "engine": "engine",
    "trainer": "trainer",
    "executor": "executor",
    "sandbox": "sandbox",
    "chat": "chat_format",
    "data": "data_source",
}
"""Kind of component, by top-level table that holds one component."""

CURRICULUM = "curriculum"
"""The key in the table `env` that is not the plugin's."""

MAPS = {"rewards": "reward", "tools": "tool", "chat_models": "chat_model", "trackers": "tracker"}
"""Kind of component, by top-level table that holds components by name."""


class RoleConfig(Strict):
    """The keys of a role's table that the team reads; the others are its plugin's settings."""

    policy: str
    tools: list[str] = Field(default_factory=list, description="Names in the table `tools`.")
    max_tool_turns: int | None = Field(None, ge=0, description="Default: team.max_tool_turns.")
    show_thoughts: bool = Field(False, description="Keep thoughts in the text that others and rewards read.")


TEAM_KEYS = tuple(RoleConfig.model_fields)
"""Keys of a role's table that the team reads, and not the role's plugin."""


class RewardConfig(Strict):
    """The keys of a reward source's table that every source has; the others are its plugin's settings."""

    weights: dict[str, Any] | None = Field(None, description="By component; default: the source's own.")
    concurrency: int | None = Field(
        None, ge=1, description="Calls at once, over all episodes; default: the source's own, or 64."
    )
    max_missing: float | None = Field(
        None, ge=0, le=1, description="Largest share of missing scores; default: schedule.max_missing."
    )


_ALSO = {"environment": (CURRICULUM,), "role": TEAM_KEYS, "reward": tuple(RewardConfig.model_fields)}


class ComponentTable(NamedTuple):
    """The table of a component, or what a layer has in its place, and where it is."""

    path: str
    kind: str
    name: str
    """Its key, where a table holds components by name; else empty."""
    table: Any
    also: Sequence[str] = ()
    """Keys of its table that its plugin doesn't read."""

    @property
    def settings(self) -> Table:
        """What its plugin reads, and its `type`."""
        return {key: value for key, value in as_table(self.table).items() if key not in self.also}


def component_tables(table: Mapping[str, Any]) -> Iterator[ComponentTable]:
    """Every component of a configuration's table, or of a layer's, which may hold anything in its place."""
    for name, kind in TABLES.items():
        if table.get(name) is not None:
            yield ComponentTable(name, kind, "", table[name], _ALSO.get(kind, ()))
    team = table.get("team")
    entries_of = {**table, "team.roles": team.get("roles") if isinstance(team, Mapping) else None}
    for place, kind in {**MAPS, "team.roles": "role"}.items():
        entries = entries_of.get(place)
        for name, entry in entries.items() if isinstance(entries, Mapping) else ():
            yield ComponentTable(f"{place}.{name}", kind, name, entry, _ALSO.get(kind, ()))


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The one table that a field may hold; None: it holds values, or one of several tables."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    members = [annotation, *get_args(annotation)]
    models = [member for member in members if isinstance(member, type) and issubclass(member, BaseModel)]
    return models[0] if len(models) == 1 else None


def warn_of_settings(model: type[BaseModel], table: Any, path: str, who: str) -> None:
    """Warn of each setting of a table that is stated and deprecated, and of those in its inner tables.

    Args:
        path: dotted path of the table; empty: the top level.
        who: what declares the settings, e.g. `reward 'judge' of my-package`.
    """
    if not isinstance(table, Mapping):
        return
    for name, info in model.model_fields.items():
        key = info.alias or name
        if key not in table:
            continue
        where = f"{path}.{key}" if path else key
        if info.deprecated:
            text = (
                info.deprecated
                if isinstance(info.deprecated, str)
                else getattr(info.deprecated, "message", "")
            )
            deprecations.warn(f"{where} ({who})", f"this setting is deprecated: {text or 'leave it out'}")
        if (inner := model_of(info.annotation)) is not None:
            warn_of_settings(inner, table[key], where, who)
