"""The configuration of a run: its schema, and the result of all layers."""

from __future__ import annotations

from coterie.core.config.resolved import (
    Resolved as Resolved,
    Table as Table,
    table_digest as table_digest,
)
from coterie.core.config.schema import (
    PolicyConfig as PolicyConfig,
    RunConfig as RunConfig,
    ScheduleConfig as ScheduleConfig,
    Strict as Strict,
    TeamConfig as TeamConfig,
)
