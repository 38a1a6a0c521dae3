"""The protocol of kind `tool`: functions that a role calls within one action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Tool(Protocol):
    """A function that a role can call within one action."""

    name: str

    def find(self, text: str) -> Any | None:
        """The call in a completion without its thought, or None. Never raises, whatever the text."""

    async def run(self, call: Any) -> str:
        """The result of a call: the model's next message. Bad arguments and crashes are results too.

        Raises:
            SystemFault: a failure that the call did not cause; the scores of the action are missing.
            PolicyFault: a failure that the call caused and that ends the action.
        """


@runtime_checkable
class Opens(Protocol):
    async def open(self) -> None:
        """Start processes and connections, when the run opens."""


@runtime_checkable
class Closes(Protocol):
    async def close(self) -> None:
        """Release what `open` started, when the run closes."""


@runtime_checkable
class CountsMetrics(Protocol):
    def counted(self) -> Mapping[str, float]:
        """What it counted since the last call, by metric: added to the sums of the step's metrics."""


@runtime_checkable
class HasSchemas(Protocol):
    schemas: Sequence[Mapping[str, Any]]
    """Function schemas that the chat template shows to the model (`DescribesTools`)."""
