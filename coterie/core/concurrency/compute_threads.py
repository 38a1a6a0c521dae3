"""One thread for all heavy computation of a process.

A thread that starts an OpenMP region gets a team of workers of its own, and teams that wait for work spin on
the cores that the working team needs. Engine and trainer take turns anyway, so they share one thread. The
event loop stays free meanwhile, to step environments and wait for sandboxes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="coterie-compute")


async def compute(work: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Run blocking work in the compute thread; calls are served in the order they come."""
    return await asyncio.get_running_loop().run_in_executor(_pool(), partial(work, *arguments, **named))
