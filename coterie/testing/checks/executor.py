"""`check_executor`: results in the items' order, items at the same time, exceptions unchanged."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from coterie.core.errors import SystemFault
from coterie.testing.support.failure import ConformanceError, guarded, require, require_kind

_NAP = 0.05
"""Seconds."""


def check_executor(executor: Any) -> None:
    """Check an executor.

    - `map` returns the results in the order of the items, whichever finished first; no items give [].
    - Items are played at the same time.
    - An exception reaches the caller as it was raised, and the other items are cancelled.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    where = f"{require_kind(executor, 'executor')}.map"

    async def check() -> None:
        await _check_results(executor, where)
        await _check_exception(executor, where)

    asyncio.run(check())


async def _check_results(executor: Any, where: str) -> None:
    async def timed(item: int) -> tuple[int, float, float]:
        begin = time.monotonic()
        await asyncio.sleep(_NAP / (1 + item))
        return item, begin, time.monotonic()

    items = list(range(6))
    with guarded(where):
        results = await executor.map(timed, items)
        empty = await executor.map(timed, [])
    require(
        [item for item, _, _ in results] == items,
        "returns results in another order than the items",
        where=where,
        fix="order them by item, not by the time they finish",
    )
    require(list(empty) == [], f"returned {empty!r} for no items", where=where, fix="[]")
    overlap = max(begin for _, begin, _ in results[:2]) < min(end for _, _, end in results[:2])
    require(
        overlap,
        "plays one item after the other",
        where=where,
        fix="asyncio.gather: engines batch requests across episodes",
    )


async def _check_exception(executor: Any, where: str) -> None:
    finished: list[int] = []

    async def fails_at_two(item: int) -> int:
        if item == 2:
            raise SystemFault("item 2 broke")
        await asyncio.sleep(_NAP)
        finished.append(item)
        return item

    try:
        await executor.map(fails_at_two, list(range(6)))
    except SystemFault as fault:
        require(
            "item 2 broke" in str(fault),
            f"raised {fault!r} for SystemFault('item 2 broke')",
            where=where,
            fix="let the exception through unchanged",
        )
    except Exception as error:
        raise ConformanceError(
            f"turned a SystemFault into {type(error).__name__}",
            where=where,
            fix="let the exception through unchanged",
        ) from error
    else:
        require(False, "swallowed an exception", where=where, fix="let it through")
    finished_before = list(finished)
    await asyncio.sleep(2 * _NAP)
    require(
        finished == finished_before,
        "leaves episodes playing after it has raised",
        where=where,
        fix="cancel the rest: an active rollout that nobody awaits keeps request batches from forming",
    )
