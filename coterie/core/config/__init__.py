"""The configuration of a run: its schema, its layers, and its checks."""

from __future__ import annotations

from coterie.core.config.checks import check as check
from coterie.core.config.layers import (
    TEAM_KEYS as TEAM_KEYS,
    Resolved as Resolved,
    Table as Table,
    flatten as flatten,
    gather as gather,
    load as load,
    locate as locate,
    parse_override as parse_override,
    read_overlay as read_overlay,
    read_yaml as read_yaml,
    resolve as resolve,
    resource_path as resource_path,
    to_yaml as to_yaml,
)
from coterie.core.config.schema import (
    DEFAULT_TYPES as DEFAULT_TYPES,
    MAPS as MAPS,
    TABLES as TABLES,
    LoraSettings as LoraSettings,
    ModelInit as ModelInit,
    OptimizerSettings as OptimizerSettings,
    PolicyConfig as PolicyConfig,
    RoleConfig as RoleConfig,
    RunConfig as RunConfig,
    ScheduleConfig as ScheduleConfig,
    Strict as Strict,
    TeamConfig as TeamConfig,
    WarmStart as WarmStart,
)
from coterie.core.config.validation import validate as validate
