"""Weights that a process sends straight to where they are needed. Imports neither Ray nor torch.

The engine's process has an `Order` for each receiver, the process with the weights fulfils it. The latter may
be the run's process, which nobody can call: it asks for orders, and passes those of other processes on.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from coterie.core.errors import SystemFault

Links = dict[str, Any]
"""What a process with weights keeps between two sends, by receiver; each has `close`."""
Send = Callable[[Any, Links], Awaitable[None]]
"""Sends weights (a handle, `Weights`) to one receiver. Picklable."""


class NotAtHand(SystemFault):
    """The weights of a version are gone: the trainer has changed them."""


class NoGroup(SystemFault):
    """Two processes didn't connect to each other."""


@dataclass(frozen=True, slots=True)
class Order:
    """Asks for weights to be sent. Picklable."""

    number: int
    policy: str
    version: int
    send: Send


class Orders:
    """The orders of an engine's process."""

    def __init__(self) -> None:
        self._numbers = itertools.count(secrets.randbits(60))  # another engine's process has others
        self._new: list[Order] = []
        self._dropped: list[int] = []
        self._open: dict[int, asyncio.Future[None]] = {}
        self._changed = asyncio.Event()

    async def fulfilled(self, policy: str, version: int, send: Send) -> None:
        """Wait until weights were sent; a caller that is cancelled drops the order.

        Raises:
            NotAtHand: they are gone.
            NoGroup: the receiver can't be reached.
            Exception: what the sending raised.
        """
        order = Order(next(self._numbers), policy, version, send)
        self._open[order.number] = done = asyncio.get_running_loop().create_future()
        self._new.append(order)
        self._changed.set()
        try:
            await done
        except asyncio.CancelledError:
            self._dropped.append(order.number)
            self._changed.set()
            raise
        finally:
            del self._open[order.number]

    async def take(self, patience: float) -> tuple[list[Order], list[int]]:
        """New orders, and numbers of dropped ones, once there are any or after `patience` seconds."""
        try:
            async with asyncio.timeout(patience):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()
        taken = self._new, self._dropped
        self._new, self._dropped = [], []
        return taken

    def settle(self, number: int, error: BaseException | None) -> None:
        """Take the end of an order."""
        done = self._open.get(number)
        if done is None or done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
