"""Semaphores that the processes of a run have in common, by name."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from coterie.core.errors import SystemFault

Holder = tuple[str, int]
"""A process, and its number for the slot."""


@dataclass(slots=True)
class _Bound:
    limit: int
    holders: set[Holder] = field(default_factory=set)
    waiting: dict[Holder, asyncio.Future[None]] = field(default_factory=dict)
    """Oldest first."""

    def grant(self) -> None:
        """Give free slots to those that have waited longest."""
        while self.waiting and len(self.holders) < self.limit:
            holder = next(iter(self.waiting))
            self.holders.add(holder)
            self.waiting.pop(holder).set_result(None)


class Slots:
    """Gives slots in the order in which they were asked for; a process that is gone holds none."""

    def __init__(self) -> None:
        self._bounds: dict[str, _Bound] = {}
        self._dropped: set[str] = set()
        self._early: set[Holder] = set()
        """Slots that were given back before they were asked for: messages may overtake each other."""

    async def acquire(self, name: str, limit: int, process: str, number: int) -> None:
        """Wait for a slot.

        Args:
            name: of the semaphore.
            limit: slots that it has.
            number: of this slot, chosen by the process; `release` takes the same.

        Raises:
            SystemFault: the process counts as gone.
        """
        if process in self._dropped:
            raise SystemFault(f"{process} counts as gone, and its jobs are played elsewhere")
        if (process, number) in self._early:
            self._early.remove((process, number))
            raise SystemFault("the slot was given back before it was asked for")
        bound = self._bounds.setdefault(name, _Bound(limit))
        bound.limit = limit
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        bound.waiting[process, number] = waiting
        bound.grant()
        try:
            await waiting
        except asyncio.CancelledError:
            self._free(bound, (process, number))
            raise

    def release(self, name: str, process: str, number: int) -> None:
        """Give a slot back, or wait for it no longer."""
        bound = self._bounds.setdefault(name, _Bound(0))
        if not self._free(bound, (process, number)) and process not in self._dropped:
            self._early.add((process, number))

    def _free(self, bound: _Bound, holder: Holder) -> bool:
        """Free a slot; returns whether the process had it or waited for it."""
        waiting = bound.waiting.pop(holder, None)
        if waiting is not None:
            waiting.cancel()
        held = holder in bound.holders
        bound.holders.discard(holder)
        bound.grant()
        return held or waiting is not None

    def drop(self, process: str) -> None:
        """Free all that a process has or waits for; it gets nothing any more."""
        self._dropped.add(process)
        for bound in self._bounds.values():
            for holder in [*bound.waiting, *bound.holders]:  # no slot may go from one of its to another
                if holder[0] == process:
                    self._free(bound, holder)

    def held(self, name: str) -> int:
        """Slots of a semaphore that are taken."""
        return len(self._bounds[name].holders) if name in self._bounds else 0
