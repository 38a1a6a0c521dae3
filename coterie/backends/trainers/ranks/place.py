"""A rank's place among the ranks, and what a trainer does with the others. Without torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from coterie.backends.trainers.packing import Row


class Address(NamedTuple):
    """A rank's place, and where its world meets."""

    number: int
    world: int
    local: int
    """Its number among the ranks of its host: the index of its device."""
    host: str
    port: int


class Place(Protocol):
    """The collective operations of a trainer; every rank calls the same ones in the same order."""

    number: int
    world: int
    local: int

    def share(self, rows: Sequence[Row], packing: bool) -> list[int]:
        """Indices of the rows of this rank, in their order."""

    def sum_gradients(self, tensors: Sequence[Any], loss: float) -> float:
        """Add the gradients of all ranks, in place; returns the sum of the losses."""

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank."""

    def broadcast(self, tensors: Sequence[Any]) -> None:
        """Copy rank 0's tensors to all ranks, in place."""

    def abort(self) -> None:
        """Break operations that wait for a rank that is gone."""

    def close(self) -> None:
        """Leave the others."""


class SinglePlace:
    """The place of a process without other ranks."""

    number, world, local = 0, 1, 0

    def share(self, rows: Sequence[Row], packing: bool) -> list[int]:
        return list(range(len(rows)))

    def sum_gradients(self, tensors: Sequence[Any], loss: float) -> float:
        return loss

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, tensors: Sequence[Any]) -> None:
        pass

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass
