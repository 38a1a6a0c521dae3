"""The protocol of kind `executor`: where episodes run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

T = TypeVar("T")
R = TypeVar("R")


# Optional: set_progress(share), told before each update of a run with `schedule.tokens` which share of
# them is spent; `optimizer.horizon: budget` requires it.
# Optional, together: bases() -> {name: policies that start from the same weights}, and
# async warm_start(policy, demonstrations, config) -> Metrics, which trains the start of all of those.


@runtime_checkable
class Executor(Protocol):
    """Where episodes run."""

    async def map(self, play: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
        """Play every item; results in the order of the items."""
