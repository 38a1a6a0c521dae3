"""Answers that the roles of a team share: one call for all that are told of the same state."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")
MOST = 4096
"""Answers that wait for a role; of more the oldest go (their episodes were lost)."""


@dataclass(slots=True)
class _ExpertCall(Generic[T]):
    """A call under way."""

    task: asyncio.Future[T]
    waiting: int = 0


@dataclass(slots=True)
class _Kept(Generic[T]):
    """An answer, and how many episodes of each role have yet to read it."""

    answer: T
    unread: Counter[str] = field(default_factory=Counter)


class SharedAnswers(Generic[T]):
    """Answers by key. Who asks leaves the answer to its teammates, who read it once each.

    So nothing outlives its state: a later episode asks anew, and the chat model's own cache serves it.

    Args:
        joins: whether equal questions wait for one call under way. Off for a model behind the run's engine:
            its batches begin when all episodes wait for the engine, and those that joined never would.
    """

    def __init__(self, joins: bool) -> None:
        self._joins = joins
        self._calls: dict[str, _ExpertCall[T]] = {}
        self._kept: OrderedDict[str, _Kept[T]] = OrderedDict()

    async def get(
        self, key: str, role: str, roles: Sequence[str], ask: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        """The answer that a teammate left, that of a call under way, or one asked for now.

        Args:
            roles: all roles that the answer is for.
        """
        kept = self._kept.get(key)
        if kept is None or not kept.unread[role]:
            answer = await (self._joined(key, ask) if self._joins else ask())
            kept = self._kept.get(key) or _Kept(answer)
            kept.answer = answer  # newer than what a lost episode left
        if kept.unread[role]:
            kept.unread[role] -= 1
        else:
            kept.unread.update(other for other in roles if other != role)
        if kept.unread.total():
            self._kept[key] = kept
        else:
            self._kept.pop(key, None)
        if len(self._kept) > MOST:
            self._kept.popitem(last=False)
        return kept.answer

    async def _joined(self, key: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = _ExpertCall(asyncio.ensure_future(ask()))
        call.waiting += 1
        try:
            return await asyncio.shield(call.task)  # who is cancelled must not cancel those that joined
        finally:
            call.waiting -= 1
            if not call.waiting:
                self._calls.pop(key, None)
                call.task.cancel()  # of a call that is done: nothing happens
