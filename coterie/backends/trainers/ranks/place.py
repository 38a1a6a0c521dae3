"""A rank's place among the ranks, and what a trainer does with the others. Without torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from coterie.backends.trainers.packing import TokenRow


class RankAddress(NamedTuple):
    """A rank's number, and where its world meets."""

    number: int
    world: int
    local: int
    """Its number among the ranks of its host: the index of its device."""
    host: str
    port: int


class RankPlace:
    """A rank among the others, with the collective operations of a trainer: all ranks call the same ones in
    the same order. This one is of a process without other ranks."""

    number, world, local = 0, 1, 0

    def share(self, rows: Sequence[TokenRow], packing: bool) -> list[int]:
        """Indices of the rows of this rank, in their order."""
        return list(range(len(rows)))

    def sum_gradients(self, tensors: Sequence[Any], loss: float) -> float:
        """Add the gradients of all ranks, in place; returns the sum of the losses."""
        return loss

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank."""
        return [value]

    def broadcast(self, tensors: Sequence[Any]) -> None:
        """Copy rank 0's tensors to all ranks, in place."""

    def abort(self) -> None:
        """Break operations that wait for a rank that is gone."""

    def close(self) -> None:
        """Leave the others."""
