"""The configuration of a run: its schema, and the result of all layers."""

from __future__ import annotations

from coterie.core.config.resolved import (
    Resolved as Resolved,
    Table as Table,
    json_like as json_like,
    table_digest as table_digest,
    to_yaml as to_yaml,
)
from coterie.core.config.schema import (
    PolicyConfig as PolicyConfig,
    RunConfig as RunConfig,
    ScheduleConfig as ScheduleConfig,
    Strict as Strict,
    TeamConfig as TeamConfig,
)
