"""What the items of a message do to a board."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a message does to the board, such as a walk. Its items are moves, assignments, ..."""

    items: tuple[Any, ...]
    """As written, without those beyond the limit."""
    written: int
    """The number of items in the message, those beyond the limit included."""
    tried: int = 0
    """The number of items played or refused; those after a stop, or after the end, are not tried."""
    illegal: tuple[tuple[int, str], ...] = ()
    """(number of the item counted from 1, reason) of every refused item."""
    readable: bool = True

    @property
    def legal(self) -> int:
        """The number of items that were played."""
        return self.tried - len(self.illegal)


def play(
    items: Sequence[T],
    attempt: Callable[[T], str],
    over: Callable[[], bool],
    *,
    limit: int | None,
    skip: bool,
) -> dict[str, Any]:
    """Play items in order, until the game is over, up to the limit, or (unless `skip`) the first illegal one.

    Args:
        attempt: plays an item, or returns the reason why it is illegal.

    Returns:
        The fields of an `Effect`.
    """
    within_limit, tried = tuple(items[:limit]), 0
    illegal: list[tuple[int, str]] = []
    for number, item in enumerate(within_limit, 1):
        if over():
            break
        tried = number
        if reason := attempt(item):
            illegal.append((number, reason))
            if not skip:
                break
    return {"items": within_limit, "written": len(items), "tried": tried, "illegal": tuple(illegal)}
