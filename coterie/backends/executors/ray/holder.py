"""Weights that a process with a trainer sends to replicas itself, and the orders for them.

Neither passes Ray's object store or another process: `backends.cluster.direct`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from coterie.backends.cluster.direct import Links, NotAtHand, Order
from coterie.backends.cluster.wire import sent_error, unwrapped
from coterie.backends.models.compute_threads import compute
from coterie.core.types import Weights

log = logging.getLogger("coterie")


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


Fulfil = Callable[[Order], Awaitable[None]]


class Service:
    """Fulfils the orders of an engine host, from the run's process.

    Args:
        fulfil: sends the weights of an order. It is cancelled where the order is dropped.
        patience: seconds after which an engine host answers that there are none.
    """

    def __init__(self, fulfil: Fulfil, patience: float) -> None:
        self._fulfil, self._patience = fulfil, patience
        self._open: dict[int, asyncio.Task[None]] = {}

    async def run(self, actor: Any, gone: type[Exception]) -> None:
        """Fulfil the orders of an engine host until it is gone.

        Args:
            gone: the exception of a process that is gone.
        """
        try:
            while True:
                orders, dropped = unwrapped(await actor.orders.remote(self._patience))
                for order in orders:
                    self._open[order.number] = asyncio.ensure_future(self._one(actor, order, gone))
                for number in dropped:
                    if number in self._open:
                        self._open[number].cancel()
        except gone:
            return  # its successor is asked, and orders anew
        finally:
            for task in [*self._open.values()]:
                task.cancel()

    async def _one(self, actor: Any, order: Order, gone: type[Exception]) -> None:
        error = b""
        try:
            await self._fulfil(order)
        except Exception as failed:
            error = sent_error(failed, "in the process with the trainer's weights")
        try:
            await actor.settle.remote(order.number, error)
        except gone:
            log.debug("nobody waits for version %d of '%s' any more", order.version, order.policy)
        finally:
            del self._open[order.number]
