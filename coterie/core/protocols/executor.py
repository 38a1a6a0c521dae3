"""The protocol of kind `executor`: where episodes run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

T = TypeVar("T")
R = TypeVar("R")


@runtime_checkable
class Executor(Protocol):
    """Where episodes run."""

    async def map(self, play: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
        """Play every item; results in the order of the items."""
