"""The configuration of a run: its schema, and the result of all layers."""

from __future__ import annotations

from coterie.core.config.resolved import (
    Resolved as Resolved,
    Table as Table,
    flatten as flatten,
    json_like as json_like,
    table_digest as table_digest,
    to_yaml as to_yaml,
)
from coterie.core.config.schema import (
    DEFAULT_TYPES as DEFAULT_TYPES,
    MAPS as MAPS,
    TABLES as TABLES,
    PolicyConfig as PolicyConfig,
    RunConfig as RunConfig,
    ScheduleConfig as ScheduleConfig,
    Strict as Strict,
    TeamConfig as TeamConfig,
)
from coterie.core.config.validation import validate as validate
