"""The demonstrations of a warm start on their way to a trainer host: those of one step at a time.

They are made in the run's process, which has the environment, while the trainer waits for them in its thread.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Sequence

from coterie.core.errors import SystemFault
from coterie.core.protocols import Demonstration


class Wanted:
    """What the trainer asks for, in its process. Made in the thread of the event loop that answers."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._steps: asyncio.Queue[int | None] = asyncio.Queue()
        self._given: queue.SimpleQueue[Sequence[Demonstration] | BaseException] = queue.SimpleQueue()

    def demonstrations(self, step: int) -> Sequence[Demonstration]:
        """Those of a step, in the trainer's thread, which waits for them."""
        self._loop.call_soon_threadsafe(self._steps.put_nowait, step)
        given = self._given.get()
        if isinstance(given, BaseException):
            raise given
        return given

    async def next(self) -> int | None:
        """The next step whose demonstrations are wanted; None: no other one will be."""
        return await self._steps.get()

    def give(self, demonstrations: Sequence[Demonstration]) -> None:
        """The demonstrations of the last step."""
        self._given.put(demonstrations)

    def end(self) -> None:
        """Want nothing any more; whoever waits for demonstrations gets an error."""
        self._steps.put_nowait(None)
        self._given.put(SystemFault("the warm start has ended"))
