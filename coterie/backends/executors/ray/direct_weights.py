"""Weights that go from the trainer's GPU to replicas: what sends them, and which do.

A `Holder` is in each process with a trainer; `DirectWeights` is the part of the run's process. The weights
pass neither Ray's object store nor another process: `backends.cluster.transfer`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from coterie.backends.cluster.connection import Connection
from coterie.backends.cluster.hosts import HostGone, HostHandle
from coterie.backends.cluster.transfer import PATH, WORDS, Links, NotAtHand, Order, Transfer
from coterie.backends.cluster.wire import sent_error
from coterie.backends.executors.ray.shipping import Elsewhere
from coterie.backends.models.compute_threads import compute
from coterie.core.errors import ConfigError
from coterie.core.types import Weights

log = logging.getLogger("coterie")
Fulfil = Callable[[Order], Awaitable[None]]
"""Sends the weights of an order."""


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


class DirectWeights:
    """Has the weights that this process sends itself, and passes orders on to other trainers.

    Args:
        transfer: how weights travel.
    """

    def __init__(self, transfer: Transfer, connection: Connection) -> None:
        self._transfer, self._connection = transfer, connection
        self._holder = Holder()
        self._fulfil: dict[str, Fulfil] = {}
        """By policy: what lets the process with its weights send them."""
        self._refused: dict[str, bool] = {}
        """By policy: whether its process can't send from a GPU."""
        self._serving: set[asyncio.Task[None]] = set()
        """One for each engine host."""

    async def ways(self, weights: Weights) -> Mapping[str, str] | None:
        """How replicas get a policy's weights; None: the engine's process gets them, with the tensors.

        Raises:
            ConfigError: `cluster.weights` names a way, and the trainer has no GPU to send from.
        """
        policy, ways = weights.policy, self._transfer.of(weights.policy)
        if not ways or weights.adapter is not None or weights.folder is not None:
            return None
        if policy not in self._refused:
            there = isinstance(weights.module, Elsewhere)
            can = await weights.module.can_send() if there else await asyncio.to_thread(has_gpu)
            self._refused[policy] = not can
            if self._refused[policy]:
                self._refuse(policy)
        return None if self._refused[policy] else ways

    def _refuse(self, policy: str) -> None:
        stated = self._connection.settings.weights
        why = "its trainer sees no GPU of CUDA, although the cluster has given it one"
        if stated in WORDS:
            what = f"the weights of '{policy}' can't go to the replicas by {WORDS[stated]}"
            raise ConfigError(what, path=PATH, why=why, fix="set cluster.weights=auto, or repair CUDA there")
        log.warning("weights of '%s' go through Ray's object store: %s", policy, why)

    def keep(self, weights: Weights, ways: Mapping[str, str] | None) -> None:
        """Take weights that were announced to the engine host."""
        if ways is None:
            return
        if isinstance(weights.module, Elsewhere):
            self._fulfil[weights.policy] = weights.module.fulfil
        else:
            self._holder.keep(weights)
            self._fulfil[weights.policy] = self._holder.fulfil

    def serve(self, host: HostHandle) -> None:
        """Fulfil the orders of an engine host, until it is gone."""
        if not self._transfer.ways:
            return
        task = asyncio.ensure_future(self._serve(host))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        task.add_done_callback(_report)

    async def close(self) -> None:
        """Serve nobody any more, and disconnect from all replicas."""
        serving = [*self._serving]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await self._holder.close()

    async def _serve(self, host: HostHandle) -> None:
        patience = self._connection.settings.timeout / 4
        """Seconds after which an engine host answers that there are no orders."""
        sending: dict[int, asyncio.Task[None]] = {}
        try:
            while True:
                orders, dropped = await host.call("orders", patience)
                for order in orders:
                    sending[order.number] = task = asyncio.ensure_future(self._fulfilled(host, order))
                    task.add_done_callback(partial(sending.pop, order.number))
                for number in dropped:
                    if number in sending:
                        sending[number].cancel()
        except HostGone:
            return  # its successor is asked, and orders anew
        finally:
            for task in [*sending.values()]:
                task.cancel()

    async def _fulfilled(self, host: HostHandle, order: Order) -> None:
        """Send the weights of an order, and tell the engine host so, or what the sending raised."""
        error = b""
        try:
            if order.policy not in self._fulfil:
                raise NotAtHand(f"no process has the weights of '{order.policy}'")
            await self._fulfil[order.policy](order)
        except Exception as failed:
            error = sent_error(failed, "in the process with the trainer's weights")
        try:
            await host.call("settle", order.number, error)
        except HostGone:
            log.debug("nobody waits for version %d of '%s' any more", order.version, order.policy)


def _report(task: asyncio.Future[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("nobody sends weights any more: %s: %s", type(error).__name__, error)
