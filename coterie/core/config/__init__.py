"""The configuration of a run: its schema, its layers, and its checks."""

from __future__ import annotations

from coterie.core.config.checks import check as check
from coterie.core.config.layers import (
    TEAM_KEYS as TEAM_KEYS,
    RecipeInfo as RecipeInfo,
    Resolved as Resolved,
    Table as Table,
    flatten as flatten,
    load as load,
    locate as locate,
    parse_override as parse_override,
    read_yaml as read_yaml,
    recipes as recipes,
    resource_path as resource_path,
    to_yaml as to_yaml,
)
from coterie.core.config.schema import (
    DEFAULT_TYPES as DEFAULT_TYPES,
    MAPS as MAPS,
    TABLES as TABLES,
    PolicyConfig as PolicyConfig,
    RoleConfig as RoleConfig,
    RunConfig as RunConfig,
    ScheduleConfig as ScheduleConfig,
    Strict as Strict,
    TeamConfig as TeamConfig,
    policy_schema as policy_schema,
)
from coterie.core.config.validation import validate as validate
