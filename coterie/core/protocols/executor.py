"""The protocol of kind `executor`: the processes in which episodes run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

T = TypeVar("T")
R = TypeVar("R")


@runtime_checkable
class Executor(Protocol):
    """Runs episodes."""

    async def map(self, play: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
        """The result of `play` for every item, in the order of the items."""
