"""The protocol of kind `data_source`: the records that environments make tasks from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from coterie.core.types.splits import Split


@runtime_checkable
class DataSource(Protocol):
    """Provides the records that an environment makes its tasks from."""

    def records(self, split: Split) -> Sequence[Mapping[str, Any]]:
        """The records of a split, in a fixed order. Their `where(index)`, if any, gives file and line."""
