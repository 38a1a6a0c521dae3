"""The protocol of kind `data_source`: records for environments that read their tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from coterie.core.types.splits import Split


@runtime_checkable
class DataSource(Protocol):
    """Records for environments that read their tasks."""

    def records(self, split: Split) -> Sequence[Mapping[str, Any]]: ...
