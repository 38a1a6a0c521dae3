"""Weights that a process with a trainer sends to replicas itself.

They pass neither Ray's object store nor another process: `backends.cluster.direct`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from coterie.backends.cluster.direct import Links, NotAtHand, Order
from coterie.backends.models.compute_threads import compute
from coterie.core.types import Weights


def has_gpu() -> bool:
    """Whether this process can send from a GPU."""
    import torch

    return torch.cuda.is_available()


def _state(weights: Weights) -> int:
    """A number that changes with the values."""
    tensors: Any = weights.tensors
    if tensors is not None:
        return int(tensors.state())
    return hash(tuple((id(each), each._version) for each in weights.module.parameters()))


class Holder:
    """The newest weights of policies, as the trainer handed them over, and who got them."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Weights, int]] = {}
        self._links: Links = {}
        self._sending: dict[int, asyncio.Task[None]] = {}

    def keep(self, weights: Weights) -> None:
        """Take weights whose tensors the trainer may change later: they count as gone then."""
        self._kept[weights.policy] = weights, _state(weights)

    async def fulfil(self, order: Order) -> None:
        """Send weights.

        Raises:
            NotAtHand: the trainer has changed them, before they were sent or meanwhile.
            Exception: what the sending raised.
        """
        self._sending[order.number] = sending = asyncio.ensure_future(self._fulfil(order))
        try:
            await sending
        finally:
            sending.cancel()
            del self._sending[order.number]

    def drop(self, number: int) -> None:
        """End the sending of an order that nobody waits for."""
        if number in self._sending:
            self._sending[number].cancel()

    async def close(self) -> None:
        """Disconnect from all receivers."""
        for sending in self._sending.values():
            sending.cancel()
        for link in self._links.values():
            link.close()
        self._links.clear()

    async def _fulfil(self, order: Order) -> None:
        weights, state = self._kept.get(order.policy, (None, 0))
        if weights is None or weights.version != order.version:
            raise self._gone(order)
        await self._check(order, weights, state)
        await order.send(weights, self._links)
        await self._check(order, weights, state)

    async def _check(self, order: Order, weights: Weights, state: int) -> None:
        # The trainer updates in the compute thread: there no update is half done.
        if await compute(_state, weights) != state:
            raise self._gone(order)

    @staticmethod
    def _gone(order: Order) -> NotAtHand:
        return NotAtHand(
            f"version {order.version} of the weights of '{order.policy}' is no longer at hand: the trainer "
            "has changed them since"
        )
